"""The command line, called as a person calls it."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys

import pytest

import losszoo
from losszoo import cli
from losszoo.cli.prebuild import _kernels
from losszoo.cli.show import zoo

pytestmark = pytest.mark.cpu_only

LOSSES = ("cross_entropy", "softmax_focal_loss", "sigmoid_focal_loss", "ciou_loss", "wiou_loss")


def output(capsys: pytest.CaptureFixture[str], *command: str, status: int = 0) -> tuple[str, str]:
    """What a command prints to its two streams, after its exit status was `status`."""
    assert cli.main(command) == status
    return capsys.readouterr()


def test_as_a_program(measured):
    """`python -m losszoo` hands on arguments and exit status."""
    command = [sys.executable, "-m", "losszoo"]
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout == f"losszoo {losszoo.__version__}\n"
    unknown = subprocess.run([*command, "show", "nonesuch"], capture_output=True, text=True)
    assert unknown.returncode == 2 and unknown.stdout == ""


def test_a_reader_that_stops_early_is_no_error():
    command = [sys.executable, "-m", "losszoo", "show", "cross_entropy", "--source", "cuda"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b"" and process.wait() == 0


def test_list_has_every_function_and_module(capsys):
    table = output(capsys, "list")[0]
    for name in (*LOSSES, *losszoo.losses.__all__):
        assert re.search(rf"\b{name}\b", table), name
    row = next(line for line in table.splitlines() if line.startswith("ciou_loss"))
    assert re.fullmatch(r"ciou_loss +CIoULoss +pred: Box +1 - IoU \+ .*", row)


@pytest.mark.parametrize("name", LOSSES)
def test_show_gives_signature_and_documentation(capsys, name):
    text = output(capsys, "show", name)[0]
    function, modules = zoo()[name]
    assert text.startswith(f"losszoo.{name}(")
    assert function.__doc__ in text and modules
    assert all(f"losszoo.{module.__name__}(" in text for module in modules)


def test_show_finds_a_loss_by_its_module(capsys):
    assert output(capsys, "show", "LabelSmoothingCrossEntropy") == output(capsys, "show", "cross_entropy")


@pytest.mark.parametrize("name", LOSSES)
def test_show_source_prints_the_kernels_after_a_comment(capsys, name):
    host = output(capsys, "show", name, "--source", "cpu")[0]
    device = output(capsys, "show", name, "--source", "cuda")[0]
    assert "__global__" in device and "__global__" not in host
    for text in host, device:
        assert text.startswith(f"// losszoo.{name}(")
        assert "forward(" in text and "backward(" in text and "#include <losszoo/math.h>" in text
        comment = text.partition("#include")[0]
        assert all(line.startswith("//") for line in comment.splitlines() if line)


@pytest.mark.parametrize(
    "name, hints",
    [
        ("ciou", ["ciou_loss", "CIoULoss"]),
        ("crossentropy", ["cross_entropy", "CrossEntropyLoss"]),
        ("wiou_los", ["wiou_loss"]),
    ],
)
def test_an_unknown_loss_is_met_with_close_names(capsys, name, hints):
    printed, said = output(capsys, "show", name, status=2)
    assert printed == "" and f"no loss is called {name!r}; did you mean " in said
    assert all(re.search(rf"\b{hint}\b", said) for hint in hints)


def test_an_unlike_name_is_met_with_no_guess(capsys):
    said = output(capsys, "show", "zzz", status=2)[1]
    assert said == "losszoo: no loss is called 'zzz'. `losszoo list` names them all.\n"


@pytest.mark.parametrize("command", [[], ["dance"], ["show"], ["show", "cross_entropy", "--source", "fortran"]])
def test_a_malformed_command_exits_with_2(capsys, command):
    with pytest.raises(SystemExit) as exit:
        cli.main(command)
    assert exit.value.code == 2 and "usage: losszoo" in capsys.readouterr().err


CALLS = """
import torch, losszoo
from losszoo.jit import toolchains

def refuse(*_):
    raise AssertionError("compiled")

toolchains.Cpp.compile = refuse
for dtype in torch.float32, torch.bfloat16:
    for shape in (16, 512), (3, 7), (2, 5, 8, 8):
        x = torch.randn(shape, dtype=dtype, requires_grad=True)
        losszoo.cross_entropy(x, torch.zeros((shape[0], *shape[2:]), dtype=torch.long)).backward()
    boxes = torch.rand(5, 4, dtype=dtype, requires_grad=True)
    for version in 1, 2, 3:
        losszoo.wiou_loss(boxes, boxes.detach(), version=version).backward()
"""


def test_prebuild_has_each_direction_of_a_cuda_kernel_in_its_own_tiling():
    forward, backward = _kernels(losszoo.cross_entropy.spec, "cuda", ["bfloat16"], [(4096, 32000)], every=False)
    assert forward.form.tiling != backward.form.tiling
    assert (forward.entries, backward.entries) == (("forward",), ("backward",))
    (both,) = _kernels(losszoo.cross_entropy.spec, "cuda", ["float32"], [(128, 1000)], every=False)
    assert both.entries == ("forward", "backward")


def test_prebuild_leaves_nothing_to_compile(capsys, tmp_path, monkeypatch):
    quick = tmp_path / "c++"  # which kernels are there is what is asked, and not how fast they are
    quick.write_text('#!/bin/sh\nexec c++ "$@" -O0\n')
    quick.chmod(0o755)
    monkeypatch.setenv("CXX", str(quick))
    monkeypatch.setenv("LOSSZOO_CACHE_DIR", str(tmp_path / "cache"))
    said = output(capsys, "prebuild", "cross_entropy", "WIoULoss", "--dtype", "float32", "bfloat16", "--jobs", "2")[0]
    assert re.fullmatch(r"\d+ kernels of cross_entropy, wiou_loss for cpu\n", said)
    subprocess.run([sys.executable, "-c", CALLS], check=True)


def test_prebuild_for_a_gpu_that_is_not_here(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("LOSSZOO_CACHE_DIR", str(tmp_path))
    output(capsys, "prebuild", "sigmoid_focal_loss", "--arch", "sm_90", "sm_80", "--dtype", "bfloat16")
    cubins = list(tmp_path.glob("sigmoid_focal_loss-*/kernel.cubin"))
    assert len(cubins) >= 2 and not list(tmp_path.glob("*/kernel.so"))


def test_prebuild_refuses_what_it_does_not_know(capsys):
    assert "nonesuch" in output(capsys, "prebuild", "nonesuch", status=2)[1]
    assert "sm_90" in output(capsys, "prebuild", "--arch", "hopper", status=2)[1]
    assert "8x19x512x1024" in output(capsys, "prebuild", "--shape", "32000", status=2)[1]


def test_prebuild_for_shapes(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("LOSSZOO_CACHE_DIR", str(tmp_path))
    said = output(capsys, "prebuild", "cross_entropy", "--arch", "sm_90", "--dtype", "bfloat16", "--shape", "64x1000", "9x7x5")[0]
    kernels = [path.read_text() for path in tmp_path.glob("cross_entropy-*/kernel.cu")]
    assert len(kernels) == int(said.split()[0]) and sorted("(columns)" in k for k in kernels) == sorted("(rows)" not in k for k in kernels)
    assert any("(columns)" in k for k in kernels) and any("(rows)" in k for k in kernels)


def test_the_demo_without_its_extra_says_what_to_install(capsys, monkeypatch, tmp_path):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("sklearn", "tqdm") else find(name))
    said = output(capsys, "demo", "--out", str(tmp_path / "demo.png"), status=2)[1]
    assert said == 'losszoo: the demo needs sklearn, tqdm: pip install "losszoo[demo]"\n'


def test_the_demo_refuses_a_picture_in_no_folder(capsys, tmp_path):
    said = output(capsys, "demo", "--out", str(tmp_path / "missing" / "demo.png"), status=2)[1]
    assert said.count("\n") == 1 and "there is no folder" in said


def test_a_short_demo(tmp_path, measured):
    """Fewer epochs, steps and rounds; still right that the curves agree and that both networks learn."""
    picture = tmp_path / "demo.png"
    short = "import sys; from losszoo.losses.demo import run; run(sys.argv[1], epochs=8, steps=60, rounds=1)"
    # In a process of its own, since scikit-learn brings another OpenMP into its process
    result = subprocess.run([sys.executable, "-c", short, picture], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    text = result.stdout
    accuracies = [float(x) for x in re.findall(r"(?:losszoo|torch) ([\d.]+)%", text)]
    assert len(accuracies) == 2 and min(accuracies) >= 80
    assert float(re.search(r"difference of the loss curves +(\S+)", text)[1]) <= 1e-3
    overlaps = [float(x) for x in re.findall(r"(?:CIoU|WIoU v3) ([\d.]+)", text)]
    assert len(overlaps) == 2 and min(overlaps) >= 0.4
    assert all(re.search(rf"{name}.*\d+\.\d+x", text) for name in LOSSES)
    assert picture.read_bytes().startswith(b"\x89PNG")
