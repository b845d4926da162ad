"""Settings from files and the command line, passed with their origin to all components that accept them."""

from palm.config.config import Config
from palm.config.conversion import DataPath, FilePath, ModelPath, settings_of
from palm.config.files import yaml_text
from palm.config.reading import read_config

__all__ = ["Config", "DataPath", "FilePath", "ModelPath", "read_config", "settings_of", "yaml_text"]
