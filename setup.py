"""The build: metadata is in pyproject.toml; this maps data/published into the wheel."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithTables(build_py):
    """Copies the published tables beside the modules; an editable install reads the clone's."""

    def run(self):
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "dlguide" / "_wheel_data" / "published"
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(Path(__file__).resolve().parent / "data" / "published", target)


setup(cmdclass={"build_py": BuildWithTables})
