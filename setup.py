"""What pyproject.toml cannot say: packages found by looking, and two folders beside them that ship inside the package."""

from setuptools import find_namespace_packages, find_packages, setup

folders = {"losszoo._csrc": "csrc", "losszoo._templates": "templates"}
shipped = [*folders, *(f"{package}.{name}" for package, folder in folders.items() for name in find_namespace_packages(folder))]

setup(
    packages=[*find_packages(include=["losszoo", "losszoo.*"]), *shipped],
    package_dir=folders,
    package_data={package: ["*"] for package in shipped},
)
