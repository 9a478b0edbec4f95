import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from partavg.data.images import Images

IMAGES = torch.randint(0, 256, (50, 3, 8, 6), dtype=torch.uint8, generator=torch.Generator())
KEYS = torch.tensor([11, 12])


def batch() -> Tensor:
    """Two workers with twenty images each."""
    return torch.stack([IMAGES[:20], IMAGES[20:40]])


@pytest.mark.parametrize(("normalize", "axes"), [("channel", (0, 2, 3)), ("pixel", (0,))])
def test_the_training_images_get_mean_0_and_deviation_1(normalize: str, axes: tuple) -> None:
    images = Images.fit(IMAGES, normalize=normalize)(IMAGES)
    assert images.mean(axes).abs().max() < 1e-5
    assert (images.std(axes, correction=0) - 1).abs().max() < 1e-4


def test_a_pixel_that_never_changes_is_no_division_by_zero() -> None:
    still = IMAGES.clone()
    still[:, :, 0, 0] = 7
    assert (Images.fit(still, normalize="pixel")(still)[:, :, 0, 0] == 0).all()


def test_none_only_scales() -> None:
    assert torch.equal(Images.fit(IMAGES, normalize="none")(IMAGES), IMAGES / 255)


@pytest.mark.parametrize("normalize", ["channel", "pixel"])
def test_an_augmented_image_is_a_window_of_the_padded_one(normalize: str) -> None:
    """A slow twin: pad with zeros after normalization, cut out, flip."""
    augment = Images.fit(IMAGES, normalize=normalize, crop=2, flip=True)
    plain, moved = augment(batch()), augment(batch(), KEYS)
    seen = set()
    for image, found in zip(plain.flatten(0, 1), moved.flatten(0, 1), strict=True):
        padded = F.pad(image, (2, 2, 2, 2))
        windows = {
            (down, right, flip): window.flip(2) if flip else window
            for down in range(5)
            for right in range(5)
            for flip in (False, True)
            for window in [padded[:, down : down + 8, right : right + 6]]
        }
        matches = [how for how, window in windows.items() if torch.equal(window, found)]
        assert len(matches) == 1
        seen.add(matches[0])
    assert {down for down, _, _ in seen} == {right for _, right, _ in seen} == set(range(5))
    assert {flip for _, _, flip in seen} == {False, True}


def test_flips_are_even_and_crops_uniform() -> None:
    image = torch.zeros(1, 4000, 1, 5, 5, dtype=torch.uint8)
    image[..., 2, 2] = 255
    found = Images.fit(IMAGES, normalize="none", crop=1)(image, KEYS[:1])
    counts = found[0].sum((0, 1)).flatten()
    assert set(counts.nonzero().flatten().tolist()) == {6, 7, 8, 11, 12, 13, 16, 17, 18}
    assert (counts[counts > 0] - 4000 / 9).abs().max() < 4 * (4000 / 9) ** 0.5
    image = torch.zeros(1, 4000, 1, 5, 5, dtype=torch.uint8)
    image[..., 0] = 255
    flipped = Images.fit(IMAGES, normalize="none", flip=True)(image, KEYS[:1])
    assert abs(flipped[0, :, 0, 0, 4].sum() - 2000) < 4 * 1000**0.5


def test_what_is_drawn_depends_on_the_key_alone() -> None:
    augment = Images.fit(IMAGES, crop=2, flip=True)
    together = augment(batch(), KEYS)
    for worker in range(2):
        alone = augment(batch()[worker : worker + 1], KEYS[worker : worker + 1])
        assert torch.equal(alone[0], together[worker])
    assert not torch.equal(augment(batch(), KEYS + 5), together)


def test_the_stored_images_are_not_changed() -> None:
    before = IMAGES.clone()
    Images.fit(IMAGES, crop=2, flip=True)(batch(), KEYS)
    assert torch.equal(IMAGES, before)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"crop": -1}, "crop -1 is below 0"),
        ({"normalize": "image"}, "normalize 'image' is not known: use channel, pixel, none"),
    ],
)
def test_bad_options_are_refused(options: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Images.fit(IMAGES, **options)
