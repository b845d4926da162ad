"""Settings from files and the command line, broadcast to whoever accepts them, each with its origin."""

from palm.config.command_line import HelpRequested, program_arguments
from palm.config.config import AUTO, Config
from palm.config.conversion import DataPath, FilePath, ModelPath, type_name
from palm.config.files import yaml_text
from palm.config.model_names import MODEL_NAME, names_model
from palm.config.printing import default_text, help_text, listed
from palm.config.problems import Problems
from palm.config.reading import read_config
from palm.config.schema import REQUIRED, Consumer, Parameter, settings_of
from palm.config.values import Setting

__all__ = [
    "AUTO",
    "MODEL_NAME",
    "REQUIRED",
    "Config",
    "Consumer",
    "DataPath",
    "FilePath",
    "HelpRequested",
    "ModelPath",
    "Parameter",
    "Problems",
    "Setting",
    "default_text",
    "help_text",
    "listed",
    "names_model",
    "program_arguments",
    "read_config",
    "settings_of",
    "type_name",
    "yaml_text",
]
