import math

import pytest
import torch

from partavg.models import MODELS, cnn, gpt, logistic, lstm, mlp, resnet20, vgg11, wrn16_8, wrn28_10
from partavg.models.gpt import SIZES
from partavg.models.wide_resnet import wide_resnet


def count(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_parameter_counts() -> None:
    assert count(resnet20((3, 32, 32), 10)) == 272_762
    assert count(resnet20((3, 32, 32), 10, projection=False)) == 269_722
    assert count(cnn((1, 28, 28), 62)) == 6_603_710
    assert count(mlp((64,), 10)) == 64 * 64 + 64 + 64 * 10 + 10
    assert count(mlp((1, 28, 28), 10, hidden=())) == 7850
    assert count(logistic((1, 28, 28), 10)) == 7850
    assert count(wrn16_8((3, 32, 32), 10)) == 10_961_370
    assert count(wrn28_10((3, 32, 32), 10)) == 36_479_194
    assert count(wrn28_10((3, 32, 32), 100)) == 36_536_884
    assert count(vgg11((3, 32, 32), 10)) == 9_231_114
    assert count(vgg11((1, 28, 28), 10)) == 9_231_114 - 2 * 9 * 64
    assert count(vgg11((1, 28, 28), 10, batch_norm=False)) == 9_224_458
    # Embedding, then per direction four gates from input and state with two biases, then classes.
    lstm_layer = 2 * 4 * 256 * (256 + 256 + 2)
    assert count(lstm((200,), 2)) == 10_000 * 256 + lstm_layer + 2 * 512 + 2 == 3_613_698
    # A block has 12 w² in four matrices and two norms; the embedding is the last layer, too.
    assert count(gpt((64,), 256, size="tiny")) == 256 * 64 + 2 * (12 * 64**2 + 2 * 64) + 64
    assert count(gpt((9,), 50, size="11m")) == 50 * 384 + 6 * (12 * 384**2 + 2 * 384) + 384
    assert count(gpt((9,), 50, size="tiny", tied=False, positions="learned")) == (
        2 * 50 * 64 + 9 * 64 + 2 * (12 * 64**2 + 2 * 64) + 64
    )


@pytest.mark.parametrize("name", sorted(MODELS.keys() - {"gpt", "lstm"}))
def test_every_model_maps_images_to_classes(name: str) -> None:
    shape = (1, 28, 28)
    assert MODELS[name](shape, 7)(torch.randn(2, *shape)).shape == (2, 7)


def test_the_lstm_maps_texts_of_any_length_to_classes() -> None:
    model = lstm((9,), 7, words=20, width=4)
    for length in (1, 9):
        assert model(torch.randint(0, 20, (2, length))).shape == (2, 7)


@pytest.mark.parametrize("positions", ["rotary", "learned"])
@pytest.mark.parametrize("activation", ["gelu", "swiglu"])
def test_a_token_changes_nothing_before_it(positions: str, activation: str) -> None:
    torch.manual_seed(0)
    how = {"positions": positions, "activation": activation}
    model = gpt((9,), 20, layers=2, width=16, heads=2, **how)
    texts = torch.randint(0, 20, (2, 9))
    other = texts.clone()
    other[:, 5] = (other[:, 5] + 1) % 20
    ours, theirs = model(texts), model(other)
    assert ours.shape == (2, 9, 20)
    assert torch.equal(ours[:, :5], theirs[:, :5])
    assert not torch.isclose(ours[:, 5:], theirs[:, 5:]).all(-1).any()
    assert torch.allclose(model(texts[:, :4]), ours[:, :4], atol=1e-5)


def test_a_gpt_that_cannot_be_is_refused() -> None:
    for shape, options, sentence in (
        ((1, 28, 28), {}, "are no texts"),
        ((9,), {"size": "huge"}, "size"),
        ((9,), {"width": 30, "heads": 4}, "cannot be cut into 4 heads"),
        ((9,), {"dropout": 1.0}, "is outside"),
        ((9,), {"layers": 0}, "layers 0"),
    ):
        with pytest.raises(ValueError, match=sentence):
            gpt(shape, 20, **options)


def test_the_shortcut_without_parameters_subsamples_and_pads() -> None:
    block = resnet20((3, 8, 8), 10, projection=False)[6]
    x = torch.randn(2, 16, 8, 8)
    y = block.shortcut(x)
    assert y.shape == (2, 32, 4, 4)
    assert torch.equal(y[:, 8:24], x[:, :, ::2, ::2])
    assert not y[:, :8].any()
    assert not y[:, 24:].any()


def test_zero_gamma_makes_every_block_its_shortcut() -> None:
    x = torch.randn(2, 3, 8, 8)
    zeros, plain = (resnet20((3, 8, 8), 10, zero_gamma=zero) for zero in (True, False))
    assert zeros.state_dict().keys() == plain.state_dict().keys()
    x = zeros[:3](x)
    for zero, block in zip(zeros[3:12], plain[3:12], strict=True):
        shortcut = torch.relu(zero.shortcut(x))
        assert torch.equal(zero(x), shortcut)
        assert not torch.allclose(block(x), torch.relu(block.shortcut(x)))
        x = shortcut


@pytest.mark.parametrize("build", [resnet20, wrn16_8])
def test_norms_can_be_set(build) -> None:
    def norms(**options: float) -> set[tuple[float, float | None]]:
        layers = build((3, 8, 8), 10, **options).modules()
        return {(x.eps, x.momentum) for x in layers if isinstance(x, torch.nn.BatchNorm2d)}

    assert norms() == {(1e-5, 0.1)}
    assert norms(norm_eps=1e-3, norm_momentum=0.01) == {(1e-3, 0.01)}
    assert norms(norm_groups=8) == set()


@pytest.mark.parametrize("build", [resnet20, wrn16_8])
def test_with_groups_other_samples_do_not_matter(build) -> None:
    for groups, alone in ((0, False), (8, True)):
        model = build((3, 8, 8), 10, norm_groups=groups)
        x = torch.randn(4, 3, 8, 8)
        assert torch.allclose(model(x)[:2], model(x[:2]), atol=1e-5) == alone


def test_wide_blocks_project_only_where_the_shape_changes() -> None:
    blocks = wrn28_10((3, 8, 8), 10)[1:13]
    assert [i for i, block in enumerate(blocks) if block.projection is not None] == [0, 4, 8]
    narrow = wide_resnet((3, 8, 8), 10, depth=16, width=1)[1:7]
    assert [i for i, block in enumerate(narrow) if block.projection is not None] == [2, 4]


def test_a_wide_block_adds_its_input_before_activation() -> None:
    block = wide_resnet((3, 8, 8), 10, depth=16, width=1)[2]
    torch.nn.init.zeros_(block.conv2.weight)
    x = torch.randn(2, 16, 8, 8)
    assert torch.equal(block(x), x)


def test_vgg_pools_small_images_to_one_pixel() -> None:
    for size in (8, 28, 32):
        convolutions = vgg11((1, size, size), 10)[:-2]
        assert convolutions(torch.randn(2, 1, size, size)).shape == (2, 512, 1, 1)


def test_the_lstm_may_begin_as_in_keras() -> None:
    """As Keras documents it: ranges, orthogonal recurrences, one bias with a forget gate of 1."""
    torch.manual_seed(0)
    model = lstm((9,), 2, words=500, width=16, init="keras")
    assert 0.049 < model.embedding.weight.abs().max() <= 0.05
    bound = math.sqrt(6 / (16 + 4 * 16))
    for way in ("l0", "l0_reverse"):
        given = getattr(model.lstm, f"weight_ih_{way}")
        assert 0.98 * bound < given.abs().max() <= bound
        recurrent = getattr(model.lstm, f"weight_hh_{way}")
        torch.testing.assert_close(recurrent.T @ recurrent, torch.eye(16), atol=1e-5, rtol=0)
        bias = getattr(model.lstm, f"bias_ih_{way}") + getattr(model.lstm, f"bias_hh_{way}")
        assert bias.tolist() == [0.0] * 16 + [1.0] * 16 + [0.0] * 32
    assert model.linear.bias.tolist() == [0.0, 0.0]
    assert model.linear.weight.abs().max() <= math.sqrt(6 / (32 + 2))


def test_dropout_may_drop_whole_channels_of_the_embedding() -> None:
    seen: list[torch.Tensor] = []
    for dropped in ("values", "channels"):
        torch.manual_seed(0)
        model = lstm((50,), 2, words=500, width=64, dropout=0.5, dropped=dropped)
        model.lstm.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        model(torch.randint(1, 500, (8, 50)))
    single, whole = (one == 0 for one in seen)
    assert 0.45 < single.float().mean() < 0.55
    assert (whole.any(1) == whole.all(1)).all(), "a channel is dropped for all words or for none"
    assert 0.4 < whole.float().mean() < 0.6
    assert not (single.any(1) == single.all(1)).all()


def test_the_lstm_reads_to_the_end_in_both_directions() -> None:
    torch.manual_seed(0)
    model = lstm((6,), 3, words=20, width=4).eval()
    texts = torch.randint(0, 20, (2, 6))
    outputs, _ = model.lstm(model.embedding(texts))
    expected = model.linear(torch.cat([outputs[:, -1, :4], outputs[:, 0, 4:]], 1))
    assert torch.equal(model(texts), expected)


def test_padding_is_a_word_like_any_other() -> None:
    torch.manual_seed(0)
    model = lstm((6,), 3, words=20, width=4).eval()
    short, padded = torch.tensor([[5, 6, 7]]), torch.tensor([[0, 0, 0, 5, 6, 7]])
    assert not torch.allclose(model(short), model(padded))
    model(padded).sum().backward()
    assert model.embedding.weight.grad[0].any()


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: resnet20((3, 8, 8), 10, norm_eps=0.0), "norm_eps 0 is not above 0"),
        (
            lambda: wrn16_8((3, 8, 8), 10, norm_momentum=1.5),
            r"norm_momentum 1.5 is not in \(0, 1\]",
        ),
        (lambda: resnet20((3, 8, 8), 10, norm_groups=3), "norm_groups 3 cannot divide"),
        (lambda: wide_resnet((3, 8, 8), 10, depth=20, width=1), "depth 20 is not 6 n"),
        (lambda: wide_resnet((3, 8, 8), 10, depth=16, width=0), "width 0 is below 1"),
        (lambda: vgg11((3, 64, 33), 10), "images of 64 x 33 are too large for vgg11"),
        (lambda: lstm((1, 28, 28), 10), r"samples of shape \(1, 28, 28\) are no texts"),
        (lambda: lstm((9,), 2, words=0), "a vocabulary of 0 words"),
        (lambda: lstm((9,), 2, width=0), "an LSTM of width 0"),
        (lambda: lstm((9,), 2, dropout=1.5), "between 0 and 1, but got 1.5"),
    ],
)
def test_options_that_cannot_work_are_refused(build, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        build()


@pytest.mark.parametrize("size", sorted(SIZES.keys() - {"tiny", "gpt2"}))
def test_names_of_sizes_say_how_many_parameters_layers_have(size: str) -> None:
    with torch.device("meta"):
        blocks = gpt((8,), 256, size=size).blocks
    millions = sum(p.numel() for p in blocks.parameters()) / 1e6
    assert f"{millions:.0f}m" == size
