"""Settings from files and the command line, passed with their origin to all components that accept them."""

from palm.config.config import Config, read_config
from palm.config.conversion import DataPath, FilePath, ModelPath, settings_of
from palm.config.files import yaml_text

__all__ = ["Config", "DataPath", "FilePath", "ModelPath", "read_config", "settings_of", "yaml_text"]
