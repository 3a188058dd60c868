"""Runs the tests in lanes side by side. Each lane takes the next file that no other has taken.

python tests/lanes.py [--more | --newest | --newest-part] [--all-days] [arguments of pytest]

`make test` runs all files but those of `MORE`, and `make test-more` runs these, but for those that take turns by day:
see `ROTATED`. In both, single tests take turns, too: see `of_today` in tests/support/scale.py. With `--all-days`, all
run. `make test-newest` runs what of the former may differ by the version of Python:
see `is_same_on_each_python`; `make test-newest-part` runs a tenth of that, each day another one. A lane or two begin
with the tests that need a Ray, which wait a lot; a lane that has none left helps with the rest. If the arguments name
files, there is one lane for each kind of tests.
"""

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

TESTS = Path(__file__).parent

_USUAL = "not soak and not litellm and not frontends"

KINDS = {"others": f"{_USUAL} and not ray", "ray": f"{_USUAL} and ray"}
"""Which tests one process runs: some of the others fork, which a process that talks to a Ray should not."""

_ONE_RAY: Mapping[str, Sequence[str]] = {
    **{f"lane {number}": ("others",) for number in (1, 2, 3)},
    "lane 4": ("ray", "others"),
}

LANES: Mapping[str, Mapping[str, Sequence[str]]] = {
    "": _ONE_RAY,
    "--more": {
        "lane 1": ("others", "ray"),
        "lane 2": ("others", "ray"),
        "lane 3": ("ray", "others"),
        "lane 4": ("ray", "others"),
    },
    "--newest": _ONE_RAY,
    "--newest-part": {"lane 1": ("others",), "lane 2": ("ray", "others")},
}
"""Which kinds the lanes of each command run, in this order. A Ray for two lanes takes less than one for each."""

DAYS = 10
"""On so many of its days, `make test-newest-part` runs all that `make test-newest` does."""

MORE = [
    "project/test_types.py",
    "project/test_docs.py",
    "project/test_readme.py",
    "examples/test_programs.py",
    "http/server/*_on_ray.py",
    "http/test_ray_serve.py",
    "inference/openai/test_serve_replicas_on_ray.py",
    "http/test_guide_on_ray.py",
    "deploy/test_pods_on_ray.py",
    "cluster/test_shared_memory_on_ray.py",
    "upgrade/test_two_versions*.py",
    "cluster/test_two_rays.py",
    "cluster/test_own_ray.py",
    "cluster/test_standbys.py",
    "hosting/test_chaos_on_ray.py",
    "telemetry/test_logs.py",
    "telemetry/test_telemetry_on_ray.py",
    "cli/test_*_on_ray.py",
    "cli/test_chat_command.py",
    "cli/test_without_ray.py",
    "cli/test_mcp_command.py",
    "hosting/test_outages_on_ray.py",
    "hosting/test_waits_on_ray.py",
    "cluster/test_large_settings_on_ray.py",
    "http/openai/test_response_calls_on_ray.py",
    "remote/test_remote_commands.py",
    "project/test_small_installs.py",
    "project/test_wheel.py",
    "project/test_bench_peers.py",
    "project/test_fork_server.py",
    "replay/test_report_in_a_browser.py",
    "dispatch/test_[adew]*_on_ray.py",
    "dispatch/test_deliveries_of_two_rays.py",
    "replay/*_on_ray.py",
    "dataset/*_on_ray.py",
    "strategies/*_on_ray.py",
    "inference/*_on_ray.py",
    "cluster/test_leaving_nodes_on_ray.py",
    "client/test_[bhiq]*_on_ray.py",
    "adapters/*/*_on_ray.py",
    "memory/test_[fpu]*_on_ray.py",
    "memory/test_memory_faults_on_ray.py",
    "in_process/*_on_ray.py",
    "console/*_on_ray.py",
    "console/test_console_[fqsw]*.py",
    "examples/*.py",
    "project/test_bench*.py",
    "project/test_capacity.py",
    "project/test_floors.py",
    "project/test_lanes.py",
    "project/test_lint.py",
    "project/test_system_programs.py",
    "deploy/*.py",
]
"""What `make test-more` runs: what takes long, needs a browser, starts whole programs or a Ray of its own, tells of
types, docs, packages and measurements, or tells on Ray again what other tests tell without it.

As patterns, in the order in which files are taken, so that no lane ends long after the others."""

ROTATED = [
    [
        "cluster/test_shared_memory_on_ray.py",
        "cluster/test_own_ray.py",
        "cli/test_doctor_on_ray.py",
        "cli/test_mcp_command_on_ray.py",
        "http/openai/test_response_calls_on_ray.py",
        "inference/test_agents_on_ray.py",
        "strategies/test_window_on_ray.py",
    ],
    [
        "http/server/test_server_on_ray.py",
        "cluster/test_two_rays.py",
        "console/test_console_webhooks.py",
        "dispatch/test_deliveries_of_two_rays.py",
        "dispatch/test_engines_of_senders_on_ray.py",
        "dispatch/test_webhooks_on_ray.py",
    ],
    [
        "cli/test_session_control_on_ray.py",
        "cluster/test_leaving_nodes_on_ray.py",
        "adapters/agents_sdk/test_agents_sdk_on_ray.py",
        "adapters/agents_sdk/test_agents_sdk_session_on_ray.py",
        "cli/test_mcp_command.py",
        "console/test_console_schedules.py",
        "dispatch/test_agents_of_runs_on_ray.py",
    ],
    [
        "deploy/test_pods_on_ray.py",
        "cli/test_without_ray.py",
        "console/test_console_on_ray.py",
        "inference/test_function_engine_on_ray.py",
    ],
    [
        "upgrade/test_two_versions_on_ray.py",
        "adapters/langgraph/test_langgraph_on_ray.py",
        "adapters/mcp/test_mcp_on_ray.py",
        "adapters/pydantic_ai/test_pydantic_ai_on_ray.py",
        "client/test_hosts_on_ray.py",
        "client/test_quotas_on_ray.py",
        "cli/test_tail_and_top_on_ray.py",
        "console/test_console_command_on_ray.py",
        "http/test_guide_on_ray.py",
    ],
    [
        "hosting/test_chaos_on_ray.py",
        "hosting/test_outages_on_ray.py",
        "hosting/test_waits_on_ray.py",
        "console/test_console_users_on_ray.py",
        "dataset/test_dataset_on_ray.py",
        "dispatch/test_dispatcher_on_ray.py",
        "examples/test_hr_policy_chat.py",
        "replay/test_at_scale_on_ray.py",
    ],
    [
        "cli/test_chat_command.py",
        "cli/test_chat_on_ray.py",
        "cluster/test_large_settings_on_ray.py",
        "console/test_console_quotas.py",
        "examples/test_cluster_job.py",
        "inference/openai/test_serve_replicas_on_ray.py",
        "project/test_fork_server.py",
        "project/test_small_installs.py",
    ],
    [
        "telemetry/test_logs.py",
        "telemetry/test_telemetry_on_ray.py",
        "console/test_console_details_on_ray.py",
        "console/test_console_files.py",
        "console/test_console_search.py",
        "examples/test_agent_example.py",
        "examples/test_long_conversation.py",
        "examples/test_notebook_example.py",
        "memory/test_forgetting_on_ray.py",
        "memory/test_users_on_ray.py",
        "project/test_bench_peers.py",
    ],
]
"""Of these groups of files, which start Rays, browsers and programs, kill for long, or tell of single features on Ray,
`make test-more` runs one, each day the next, and with `--all-days` all of them."""

SAME_ON_EACH_PYTHON = (
    *("adapters/", "console/", "http/front_ends/", "http/openai/"),  # frameworks, browsers and clients of others
    *("cli/", "http/server/"),  # programs of their own, where warnings are no errors
    *("longterm/test_postgres_memory.py", "stores/test_redis_store.py", "stores/test_failed_verbs.py"),  # servers
    "project/",
)
"""The rooms and files that `make test-newest` leaves out, beside searches."""

END_TO_END = "client/test_sessions_on_ray.py"
"""The tests with a Ray that `make test-newest` runs, and its part."""

LONG = [
    "longterm/retention/test_erasing.py",
    "client/test_sessions_on_ray.py",
]
"""What `make test` takes first of the rest, for the same reason."""

TAKEN = "TURNWISE_TAKEN"
"""The environment variable that names a folder. It has a file for each file of tests that a lane has taken."""

NO_TESTS = 5
"""What pytest exits with if it was given none."""


def may_need_ray(file: Path) -> bool:
    """Return whether tests in this file may need a Ray, by the fixtures and the marker that it names."""
    return bool(
        re.search(r"\b(ray_session|ray_address|make_ray_manager|mark\.ray)\b", file.read_text(encoding="utf-8"))
    )


def is_same_on_each_python(file: Path) -> bool:
    """Return whether `make test-newest` leaves a file out, since what it would find is found on another Python, too.

    These are searches through many schedules or values, of which `make races` tries all, and those of
    `SAME_ON_EACH_PYTHON`.
    """
    searches = re.search(r"TURNWISE_ALL|\b(share|exhaust)\(|@given", file.read_text(encoding="utf-8"))
    return bool(searches) or name_of(file).startswith(SAME_ON_EACH_PYTHON)


def today() -> int:
    return int(time.time() // 86400)


def rests_today(file: Path) -> bool:
    """Return whether `make test-more` runs a file on another day."""
    return any(name_of(file) in group for number, group in enumerate(ROTATED) if number != turn_of_today())


def turn_of_today() -> int:
    """Return the number of the group of `ROTATED` whose day it is."""
    return today() % len(ROTATED)


def name_of(file: Path) -> str:
    return file.relative_to(TESTS).as_posix()


def files_of(kind: str, target: str = "", *, all_days: bool = False) -> list[Path]:
    """Return the files that may have tests of a kind, as lanes take them. To import all files takes seconds.

    Args:
        target: whose files: "--more", "--newest", "--newest-part", or nothing for `make test`.
        all_days: with those that rest today.
    """
    is_newest = target.startswith("--newest")
    if is_newest and kind == "ray":
        return [TESTS / END_TO_END]
    files = [file for file in sorted(TESTS.glob("*/**/test_*.py")) if kind != "ray" or may_need_ray(file)]
    ranks = {file: [at for at, pattern in enumerate(MORE) if PurePath(name_of(file)).match(pattern)] for file in files}
    if target == "--more":
        rest = [file for file in files if ranks[file] and (all_days or not rests_today(file))]
        return sorted(rest, key=lambda file: ranks[file][0])
    rest = [file for file in files if not ranks[file] and not (is_newest and is_same_on_each_python(file))]
    if target == "--newest-part":
        rest = rest[today() % DAYS :: DAYS]
    return sorted(rest, key=lambda file: LONG.index(name_of(file)) if name_of(file) in LONG else len(LONG))


def mark_of(file: Path, taken: str) -> Path:
    """Return the file that says which process has taken a file.

    There is one for all that run blocks of code, for which one process starts a Ray and imports what they need.
    """
    runs_blocks = re.search(r"\bsnippets: SnippetRunner\b", file.read_text(encoding="utf-8"))
    return Path(taken, "blocks" if runs_blocks else name_of(file).replace("/", "-"))


def take(file: Path, taken: str) -> bool:
    """Take a file, unless another process has taken it; return whether this one has it now."""
    mark = mark_of(file, taken)
    try:
        with mark.open("x") as opened:
            opened.write(str(os.getpid()))
    except FileExistsError:
        return mark.read_text() == str(os.getpid())
    return True


class Lane(threading.Thread):
    """Runs kinds of tests one after the other, prints what pytest prints, and keeps what failed or was skipped."""

    def __init__(
        self, name: str, kinds: Sequence[str], arguments: Sequence[str], taken: str | None, target: str = ""
    ) -> None:
        super().__init__(name=name)
        self._target = target
        self.codes: list[int] = []
        self.failures: list[str] = []
        self.reasons: set[str] = set()
        self._kinds, self._arguments, self._taken = list(kinds), arguments, taken
        self._process: subprocess.Popen[str] | None = None

    def run(self) -> None:
        while self._kinds:
            kind = self._kinds.pop(0)
            chosen, env = ["-m", KINDS[kind]], dict(os.environ)
            if self._taken is not None:
                env[TAKEN] = taken = f"{self._taken}/{kind}"
                files = files_of(kind, self._target, all_days="--all-days" in self._arguments)
                left = [str(file) for file in files if not mark_of(file, taken).exists()]
                if not left:
                    continue
                chosen += ["-o", "console_output_style=classic", *left]  # nobody knows how much of them it will take
            with subprocess.Popen(
                [sys.executable, "-m", "pytest", "--durations=12", *chosen, *self._arguments],
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            ) as self._process:
                line = ""
                for line in self._process.stdout or ():
                    print(f"{self.name} | {line}", end="", flush=True)
                    if line.startswith(("FAILED ", "ERROR ")):
                        self.failures.append(line)
                    elif line.startswith("SKIPPED "):
                        self.reasons.add(line.split(": ", 1)[-1])
            self.codes.append(self._process.returncode)
            if self._process.returncode < 0:
                self.failures.append(f"pytest was killed by signal {-self._process.returncode} after: {line.strip()}\n")

    def stop(self) -> None:
        self._kinds.clear()
        if self._process is not None:
            self._process.terminate()


def main(arguments: Sequence[str]) -> int:
    target = next((argument for argument in arguments if argument in LANES), "")
    arguments = [argument for argument in arguments if argument != target]
    with tempfile.TemporaryDirectory(prefix="turnwise-") as taken:
        for kind in KINDS:
            Path(taken, kind).mkdir()
        if any(Path(argument.partition("::")[0]).exists() for argument in arguments):
            lanes = [Lane(f"{kind:>6}", [kind], arguments, None) for kind in KINDS]
        else:
            lanes = [Lane(name, kinds, arguments, taken, target) for name, kinds in LANES[target].items()]
        for lane in lanes:
            lane.start()
        try:
            for lane in lanes:
                lane.join()
        finally:
            for lane in lanes:
                lane.stop()  # what an interrupt has left
    for reason in sorted(set().union(*(lane.reasons for lane in lanes))):
        print(f"skipped: {reason}", end="", flush=True)
    for lane in lanes:
        for line in lane.failures:  # once more, where whoever sees only the end of it sees them
            print(f"{lane.name} | {line}", end="", flush=True)
    codes = [code for lane in lanes for code in lane.codes]
    failed = [code for code in codes if code not in (0, NO_TESTS)]
    return failed[0] if failed else min(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
