"""How many parameters well-known models have."""

PARAMETERS: dict[str, int] = {
    # ours, for the data that the paper trains them on; gpt for bytes
    "cnn": 6_603_710,
    "dropout_cnn": 1_626_442,
    "gpt": 1_033_488,
    "logistic": 7_850,
    "lstm": 3_613_698,
    "mlp": 50_890,
    "resnet20": 272_762,
    "vgg11": 9_229_962,
    "wrn16_8": 10_961_370,
    "wrn28_10": 36_536_884,
    # torchvision, 1000 classes
    "alexnet": 61_100_840,
    "convnext_tiny": 28_589_128,
    "densenet121": 7_978_856,
    "efficientnet_b0": 5_288_548,
    "mobilenet_v2": 3_504_872,
    "mobilenet_v3_large": 5_483_032,
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "resnext50_32x4d": 25_028_904,
    "swin_t": 28_288_354,
    "vgg16": 138_357_544,
    "vit_b_16": 86_567_656,
    "vit_l_16": 304_326_632,
    "wide_resnet50_2": 68_883_240,
    # Hugging Face
    "bert-base-uncased": 109_482_240,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
}
