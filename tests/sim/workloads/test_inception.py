"""Inception-v3, against the sizes of its publication."""

from __future__ import annotations

from sim.workloads.inception import inception_v3_layers

LAYERS = inception_v3_layers()
CONVOLUTIONS = [layer for layer in LAYERS if layer.name.endswith(".conv")]


def test_each_convolution_has_a_normalisation_behind_it_and_no_bias() -> None:
    """94 convolutions, as torchvision's network has without its auxiliary head."""
    assert len(CONVOLUTIONS) == 94
    for at, layer in enumerate(LAYERS[:-1]):
        if layer in CONVOLUTIONS:
            assert len(layer.tensors) == 1
            assert LAYERS[at + 1].name == layer.name.replace(".conv", ".bn")


def test_the_classifier_takes_2048_channels() -> None:
    assert LAYERS[-1].parameters == 2048 * 1000 + 1000


def test_parts_have_the_parameters_of_their_shapes() -> None:
    """The stem and the first mixed block by hand; a normalisation has two numbers a filter."""
    def part(name: str) -> int:
        return sum(layer.parameters for layer in LAYERS if layer.name.startswith(f"{name}."))

    def shapes(*given: tuple[int, int, int]) -> int:
        return sum(square * inputs * filters + 2 * filters for square, inputs, filters in given)

    assert part("stem") == shapes((9, 3, 32), (9, 32, 32), (9, 32, 64), (1, 64, 80), (9, 80, 192))
    assert part("mixed5b") == shapes((1, 192, 64), (1, 192, 48), (25, 48, 64), (1, 192, 64),
                                     (9, 64, 96), (9, 96, 96), (1, 192, 32))
    assert part("mixed6b") == shapes(
        (1, 768, 192), (1, 768, 128), (7, 128, 128), (7, 128, 192), (1, 768, 128), (7, 128, 128),
        (7, 128, 128), (7, 128, 128), (7, 128, 192), (1, 768, 192))


def test_a_fork_is_two_convolutions_of_one_input() -> None:
    sizes = {layer.name: layer.tensors[0].elements for layer in CONVOLUTIONS}
    assert sizes["mixed7b.1.1.conv"] == sizes["mixed7b.1.2.conv"] == 3 * 384 * 384
    assert sizes["mixed7c.0.0.conv"] == 2048 * 320  # as wide as all branches of 7b together


def test_the_first_convolution_needs_no_gradient_of_its_input() -> None:
    assert LAYERS[0].backward_flops == LAYERS[0].forward_flops
    assert LAYERS[0].forward_flops == 2 * 9 * 3 * 32 * 149 * 149
