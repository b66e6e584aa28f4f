"""The command line of the lab: `python3 -m lab --help`."""

import argparse
import functools
import sys

from . import (
    bench,
    cache,
    distribution,
    images,
    kernels,
    overhead,
    prometheus,
    promtool,
    readers,
    requirements,
    shell,
    vm_overhead,
)
from .distribution import Unavailable
from .payload import nearpath_payload


def main() -> int:
    """Runs one command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="lab", description="Virtual hosts with nodes, queues and OVS.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    build = commands.add_parser("build", help="build missing images of virtual hosts")
    build.add_argument("--kernels", default=",".join(images.KERNELS), help="default: %(default)s")
    build.add_argument("--update", action="store_true", help="check the distribution for newer packages first")

    open_shell = commands.add_parser("shell", help="open a shell in a virtual host, with nearpath and traffic")
    shell.add_arguments(open_shell)

    commands.add_parser("bench", help="measure how long hosts take to boot, to restore, and for 20 scenarios")
    costs = commands.add_parser("bench-overhead", help="measure the cost of measuring, on packets through Open vSwitch")
    costs.add_argument("options", nargs="*", help="after --: options of the program of `make bench-overhead`")
    commands.add_parser("bench-vm", help="measure the cost of measuring packets into a virtual machine, beside BCC")
    commands.add_parser("kernels", help="write docs/kernels.md: what is observable on each kernel")
    commands.add_parser("promtool", help="print the path of Prometheus' promtool; download it if it is missing")
    for program in prometheus.PACKAGES:
        commands.add_parser(program, help=f"print the path of {program}; download it if it is missing")
    reading = commands.add_parser(
        "readers",
        help="print the path of a Python that reads recordings with DuckDB and others; install it if it is missing",
    )
    reading.add_argument("--spark", action="store_true", help="with Spark, which needs a Java runtime")
    commands.add_parser("clean", help="remove the cache")

    options = parser.parse_args()
    try:
        if options.command == "clean":
            cache.clean()
            return 0
        # Programs that are downloaded, whose path is printed.
        downloads = {
            "promtool": promtool.path,
            **{program: functools.partial(prometheus.path, program) for program in prometheus.PACKAGES},
            "readers": lambda: readers.python(options.spark),
        }
        if options.command in downloads:
            print(downloads[options.command]())
            return 0
        requirements.check()
        if options.command == "build":
            if options.update:
                distribution.forget()
            for series in options.kernels.split(","):
                images.kernel(series)
        elif options.command == "shell":
            shell.run(shell.machine(options), nearpath_payload(release=True))
        elif options.command == "bench":
            bench.run(nearpath_payload())
        elif options.command == "bench-overhead":
            overhead.run(options.options)
        elif options.command == "bench-vm":
            vm_overhead.run()
        elif options.command == "kernels":
            kernels.write(nearpath_payload())
    except Unavailable as reason:
        cache.say(str(reason))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
