"""Every error a user can meet. A message says what was expected, what was found, where, and what to do.

TaojinError
├── UserError            exit status 2: the input or the configuration is wrong; nothing was changed
│   ├── ConfigError      a flag or a YAML key
│   ├── InputError       a path, a schema, a shard
│   ├── OutputError      the output or work folder cannot be used
│   └── FrozenPlanError  a WORK folder belongs to other inputs or another configuration
└── RunError             exit status 1: a run failed part-way; the same command again resumes
    ├── StorageError     disk full, no permission, storage gone after retries
    ├── BadShardError    a shard broke while it was read
    └── UnitError        some units failed; the others are done

InvariantError           a defect of ours (conservation broken, a checksum that does not fit): never caught
"""


class TaojinError(Exception):
    exit_status = 1


class UserError(TaojinError):
    exit_status = 2


class ConfigError(UserError):
    pass


class InputError(UserError):
    pass


class OutputError(UserError):
    pass


class FrozenPlanError(UserError):
    pass


class RunError(TaojinError):
    exit_status = 1


class StorageError(RunError):
    pass


class BadShardError(RunError):
    pass


class UnitError(RunError):
    pass


class InvariantError(AssertionError):
    pass
