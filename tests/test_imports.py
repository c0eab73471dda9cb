"""Heavy and optional packages are imported inside functions, never when a module of the library is imported."""

import ast
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
LAZY = {
    "wandb", "orbax", "mujoco", "mujoco_playground", "gymnax", "brax", "matplotlib", "xarray", "zarr", "imageio",
    "tensorboardX",
}  # fmt: skip


def module_level_imports(source: str) -> set[str]:
    """First names of all packages imported outside of functions and of ``if TYPE_CHECKING`` blocks."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                return
            case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
                return
            case ast.Import(names=names):
                found.update(alias.name.split(".")[0] for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                found.add(module.split(".")[0])
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(source))
    return found


def test_module_level_imports_sees_what_it_must():
    at_top = "import a.b\nfrom c import d\nclass X:\n  import e\ntry:\n  import f\nexcept E: pass\n"
    inside = "def g():\n  import h\nif TYPE_CHECKING:\n  import i\n"
    assert module_level_imports(at_top + inside) == {"a", "c", "e", "f"}


@pytest.mark.parametrize("path", sorted((ROOT / "nnx_ppo").rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_no_heavy_import_at_module_level(path: pathlib.Path):
    assert module_level_imports(path.read_text()) & LAZY == set()


def test_importing_the_package_loads_no_heavy_package():
    code = f"import sys, nnx_ppo, nnx_ppo.cli; print(sorted({{m.split('.')[0] for m in sys.modules}} & {LAZY!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"
