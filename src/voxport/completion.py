"""Print the script that completes `voxport` in a shell: commands, options, recipes, folders of bundles."""

import argparse

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="shell that runs the script")


def run(arguments: argparse.Namespace) -> int:
    from argcomplete.shell_integration import shellcode

    print(shellcode(["voxport"], shell=arguments.shell))
    return 0
