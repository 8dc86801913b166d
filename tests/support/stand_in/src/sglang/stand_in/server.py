# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The main process: arguments, children, start-up, port, warm-up, signals, shutdown, crash."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import ssl
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any, Callable, NoReturn

from sglang.stand_in import arguments, channel, conditions, processes, profile, rank, resolve
from sglang.stand_in.faults import Faults, Raised
from sglang.stand_in.log import Log
from sglang.stand_in.nodes import Nodes
from sglang.stand_in.rank import Rank, Scheduler
from sglang.stand_in.text import read_script
from sglang.stand_in.times import Steps, Times
from sglang.stand_in.truth import Truth


def main(argv: list[str]) -> NoReturn:
    """Run a server with SGLang's arguments. Leaves with the real engine's exit status or signal."""
    begin = time.monotonic()
    truth = Truth(os.environ)
    times = Times(os.environ)
    faults = Faults(os.environ, truth)
    read_script(os.environ.get("STAND_IN_ANSWERS", ""))  # what is wrong with it is told before anything else
    truth.note("started", argv=sys.argv[:1])
    steps = Steps(times, truth, faults, "main")
    try:
        with steps.run("imports"):
            release = profile.current()
            parser = arguments.build_parser(release)
    except Raised as error:
        _leave_by_exception(truth, error.text)
    try:
        argv = arguments.merge_config(parser, argv)
        args = parser.parse_args(argv)
    except SystemExit as error:
        truth.note("exited", code=error.code)
        raise
    except ValueError:
        _leave_by_exception(truth)
    server: Server | None = None
    log = Log("info")
    try:
        log = Log(args.log_level)
        for text in getattr(args, "warnings", []):
            log.warning(text)
        settings = resolve.resolve(profile=release, args=args, argv=argv, seed=times.seed)
        conditions.know(settings.resolved)
        server = Server(settings=settings, times=times, truth=truth, faults=faults, begin=begin)
        server.start()
        status = server.serve() if settings.resolved["node_rank"] == 0 else server.follow()
    except Exception as error:  # noqa: BLE001 (what the interpreter would do, in the real order)
        # The real launch_server kills its children in a `finally` before Python prints the traceback.
        if server is not None:
            server.kill_children()
        else:
            _log_kill(log, release, include_parent=False)
        _leave_by_exception(truth, error.text if isinstance(error, Raised) else "")
    truth.note("exited", code=status)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _leave_by_exception(truth: Truth, text: str = "") -> NoReturn:
    """As Python does: the traceback of the exception being handled, or `text`, and status 1."""
    if text:
        print(text, file=sys.stderr)
    else:
        traceback.print_exc()
    truth.note("crashed", code=1)
    sys.stderr.flush()
    os._exit(1)


def _log_kill(log: Log, release: profile.Profile, include_parent: bool) -> None:
    if not release.traits["logs_kill"]:
        return
    pid = os.getpid()
    log.info(f"kill_process_tree called: parent_pid={pid}, include_parent={include_parent}, pid={pid}")


class Server:
    """State of the main process. `status` is SGLang's ServerStatus: Starting, Up, UnHealthy."""

    def __init__(self, *, settings: resolve.Settings, times: Times, truth: Truth, faults: Faults, begin: float) -> None:
        resolved = settings.resolved
        self.settings = settings
        self._release = settings.profile
        self.times = times
        self.truth = truth
        self.faults = faults
        self.log = Log(resolved["log_level"], resolved["log_level_http"])
        self.status = "Starting"
        self.draining = False
        self.startup_time: dict[str, Any] = {}
        self.memory: dict[str, Any] = {}
        self._begin = begin
        self._steps = self._steps_of("main")
        self._nodes = Nodes(resolved)
        # Children by name, as the real watchdog names them.
        self._children: dict[str, int] = {}
        self._exit_codes: dict[str, int] = {}
        self._channels: list[tuple[Rank, channel.Channel]] = []
        self._detokenizer: channel.Channel
        self._ends: list[channel.Channel] = []
        self._tracker = 0
        self._tracker_pipe = -1
        self._reaping = threading.Lock()
        self._frozen = threading.Event()
        self._watching = threading.Event()
        self._term = threading.Event()
        self._stop = threading.Event()
        self._term_monotonic = 0.0
        self._bound = False
        self._noted_ready = False
        self._noting = threading.Lock()

    def _steps_of(self, who: str) -> Steps:
        return Steps(self.times, self.truth, self.faults, who)

    # Start-up

    def start(self) -> None:
        """Everything up to the moment where uvicorn takes over. Raises RuntimeError when a rank died."""
        for text in self.settings.warnings:
            self.log.warning(text)
        shown = self.settings.shown
        if self._release.traits["server_args_line"] == "dataclass":
            fields = ", ".join(f"{key}={value!r}" for key, value in shown.items())
            self.log.info(f"server_args=ServerArgs({fields})")
        else:
            self.log.info(f"server_args={shown}")
        self._say("chat_template")
        signal.signal(signal.SIGQUIT, self._launch_sigquit)
        self.faults.strike("arguments", "main", "begin")
        self._spawn()
        infos = self._wait_for_ranks()
        first = infos[0]
        self.memory = first["memory"]
        self.startup_time = {
            **{
                key: max(info["startup_time"][key] for info in infos)
                for key in ("load_weight", "kv_cache_allocation", "scheduler_e2e")
            },
            "cuda_graph": first["startup_time"]["cuda_graph"],
            "tokenizer_e2e": time.monotonic() - self._begin,
        }
        if self._nodes.rank:
            return
        self._say(
            "startup_timings",
            graph=", ".join(f"{key}={value:.2f}" for key, value in self.startup_time["cuda_graph"].items()),
            **{key: value for key, value in self.startup_time.items() if key != "cuda_graph"},
        )

    def _say(self, key: str, **values: Any) -> None:
        """A line that not every release logs."""
        if self._release.says(key):
            self.log.info(self._release.message(key, **values))

    def _spawn(self) -> None:
        """Fork all children while there is one thread: cheap, and they look like spawned ones from outside."""
        # Keeps the pages that the children share with main untouched by the collector.
        gc.freeze()
        read, self._tracker_pipe = os.pipe()
        self._tracker = os.fork()
        if self._tracker == 0:
            os.close(self._tracker_pipe)
            rank.run_resource_tracker(read)
            os._exit(0)
        os.close(read)

        ranks = rank.ranks_of(self.settings.resolved, self._release.traits["rank_prefix"] == "always_tp")
        # Of each pair main keeps the first end, the child the second.
        pairs = {one.index: channel.pair() for one in ranks}
        detokenizer = channel.pair()
        self._ends = [end for one in (*pairs.values(), detokenizer) for end in one]
        if self.settings.resolved["dp_size"] > 1 or self.settings.resolved["attn_dp_size"] > 1:
            ends = [pairs[one.index][1] for one in ranks]
            self._children["scheduler_0"] = self._fork(lambda: self._run_controller(ranks, ends), ends)
        else:
            for one in ranks:
                self._children[f"scheduler_{one.index}"] = self._fork_scheduler(one, pairs[one.index][1])
        if self._nodes.rank == 0:
            self._children["detokenizer"] = self._fork(lambda: self._run_detokenizer(detokenizer[1]), [detokenizer[1]])
        self._channels = [(one, pairs[one.index][0]) for one in ranks]
        self._detokenizer = detokenizer[0]
        self._close_ends([*(end for _, end in self._channels), self._detokenizer])

    def _fork(self, body: Callable[[], None], ends: list[channel.Channel]) -> int:
        """Start a child that keeps only `ends` of the socket pairs: an end held by a brother would hide a death."""
        pid = os.fork()
        if pid:
            return pid
        status = 1
        try:
            rank.fresh_child()
            self._close_ends(ends)
            if self._tracker_pipe >= 0:
                os.close(self._tracker_pipe)
                self._tracker_pipe = -1
            body()
            status = 0
        except EOFError:
            # Main is gone; PR_SET_PDEATHSIG is on its way.
            status = 1
        except BaseException:  # noqa: BLE001 (a forked child must never return into main's code)
            traceback.print_exc()
        finally:
            rank.exit_quietly(status)
        return 0

    @contextlib.contextmanager
    def _giving_up(self, kind: str, prefix: str = "") -> Iterator[None]:
        """What a child does about an exception (managers/scheduler.py:6370, detokenizer_manager.py:564)."""
        try:
            yield
        except Raised as error:
            Log(self.settings.resolved["log_level"], prefix=prefix).error(f"{kind} hit an exception: {error.text}\n")
            time.sleep(error.quit_after_s)
            os.kill(os.getppid(), signal.SIGQUIT)

    def _close_ends(self, keep: list[channel.Channel]) -> None:
        for end in self._ends:
            if end not in keep:
                end.socket.close()
        self._ends = keep

    def _fork_scheduler(self, one: Rank, end: channel.Channel) -> int:
        return self._fork(lambda: self._run_scheduler(one, end), [end])

    def _run_scheduler(self, one: Rank, end: channel.Channel) -> None:
        with self._giving_up("Scheduler", one.prefix):
            Scheduler(one, self.settings, end, self._steps_of(one.prefix.strip() or "scheduler")).run()

    def _run_detokenizer(self, end: channel.Channel) -> None:
        with self._giving_up("DetokenizerManager"):
            rank.run_detokenizer(end, self._steps_of("detokenizer"))

    def _run_controller(self, ranks: list[Rank], ends: list[channel.Channel]) -> None:
        """The data-parallel controller: parent of the schedulers; one that dies takes all along."""
        parent = os.getppid()
        processes.die_with_parent(parent)
        processes.set_title("sglang::data_parallel_controller")
        for one, end in zip(ranks, ends):
            self._fork_scheduler(one, end)
        self._close_ends([])
        for _ in ranks:
            _, status = os.wait()
            if status:
                os.kill(parent, signal.SIGQUIT)
                signal.pause()

    def _wait_for_ranks(self) -> list[dict[str, Any]]:
        """Serve the barriers until every rank is ready (engine.py:1999-2040)."""
        resolved = self.settings.resolved
        here = resolved["tp_size"] * resolved["pp_size"] // resolved["nnodes"]
        waiting: dict[tuple[int, str], list[channel.Channel]] = {}
        ready: dict[int, dict[str, Any]] = {}
        open_channels: dict[int, tuple[Rank | None, channel.Channel]] = dict(self._channels_by_fd())
        while len(ready) < len(self._channels):
            if not self._nodes.complete:
                open_channels.update((end.fileno(), (None, end)) for end in self._nodes.meet())
            readable, _, _ = select.select(list(open_channels), [], [], None if self._nodes.complete else 0.1)
            for fd in readable:
                one, end = open_channels[fd]
                try:
                    message = end.receive(0.0)
                except EOFError:
                    if one is not None:
                        self._rank_died(one)
                    del open_channels[fd]
                    self._node_lost()
                    continue
                while message is not None:
                    if message["op"] == "ready" and one is not None:
                        ready[one.index] = message
                    else:
                        # Node 0 lets a group go when all nodes are there; the others wait for its word.
                        dp = 0 if one is None else one.dp
                        group = waiting.setdefault((dp, message["stage"]), [])
                        group.append(end)
                        nodes = [member for member in group if member in self._nodes.channels]
                        if len(group) - len(nodes) == here and one is not None and self._nodes.rank:
                            self._nodes.tell({"op": "at", "stage": message["stage"]})
                        if len(group) == here + (1 if self._nodes.rank else resolved["nnodes"] - 1):
                            for member in group:
                                if member not in nodes or not self._nodes.rank:
                                    member.send({"op": "go", "stage": message["stage"]})
                    message = end.receive(0.0) if end.ready() else None
        return [ready[index] for index in sorted(ready)]

    def _node_lost(self) -> None:
        for _, end in self._channels:
            with contextlib.suppress(OSError):
                end.send(self._nodes.lost())

    def _channels_by_fd(self) -> list[tuple[int, tuple[Rank, channel.Channel]]]:
        return [(end.fileno(), (one, end)) for one, end in self._channels]

    def _rank_died(self, one: Rank) -> NoReturn:
        """The real main sees rank 0's pipe at once, the others when its 5 s poll ends."""
        in_turn = self._release.traits["dead_rank"] == "log"
        if one.index and not in_turn:
            time.sleep(self.times.seconds("launch_poll"))
        name = f"scheduler_{one.index}" if f"scheduler_{one.index}" in self._children else "scheduler_0"
        _, status = os.waitpid(self._children.pop(name), 0)
        if in_turn:
            # The pipes are read one after the other, blocking: with a lower rank still loading it would wait for that.
            self._note_child_failed(status, 0)
            self.log.error(f"Rank {one.index} scheduler is dead. Please check if there are relevant logs.")
            self.log.error(f"Exit code: {_exit_code(status)}")
            raise EOFError
        raise RuntimeError(
            f"Rank {one.index} scheduler died during initialization (exit code: {_exit_code(status)})."
            " If exit code is -9 (SIGKILL), a common cause is the OS OOM killer."
            " Run `dmesg -T | grep -i oom` to check."
        )

    # A node that follows

    def follow(self) -> int:
        """What main of a node rank above 0 does (engine.py:1234-1290): a dummy health server, and the ranks' end."""
        from sglang.stand_in.http import HttpServer, Request, Response, json_response

        resolved = self.settings.resolved
        host, port = resolved["host"], resolved["port"]

        def term(_signum: int, _frame: Any) -> None:
            self.truth.note("term_received", draining=False)
            self.log.warning(
                f"SIGTERM received on node_rank {resolved['node_rank']}; waiting for the rank-0 ShutdownReq broadcast"
                " to stop the schedulers."
            )

        def health(request: Request) -> Response:
            known = request.method == "GET" and request.path in ("/ping", "/health", "/health_generate")
            return Response() if known else json_response({"detail": "Not Found"}, 404)

        signal.signal(signal.SIGTERM, term)
        http = HttpServer(handler=health, access=lambda *_: None, tls=None, keep_alive=5.0)
        try:
            http.bind(host, port)
            self.truth.note("port_bound", port=port)
        except OSError as error:
            self.log.uvicorn("error", _bind_error(error, host, port))
        self.log.info(f"Dummy health check server started in background thread at {host}:{port}")
        self.truth.note("following")
        self._pass_on()
        self.kill_children()
        return 0

    def _pass_on(self) -> None:
        """Between node 0 and the ranks, until these have ended."""
        ranks = {end for _, end in self._channels}
        leader = {*self._nodes.channels}
        joined: dict[str, int] = {}
        while ranks:
            for end in select.select([*ranks, *leader], [], [])[0]:
                try:
                    message = end.receive(0.0)
                except EOFError:
                    (ranks if end in ranks else leader).remove(end)
                    if end in self._nodes.channels:
                        self._node_lost()
                    continue
                while message is not None:
                    if end in leader:
                        for member in ranks:
                            member.send(message)
                    else:
                        joined[message["rid"]] = joined.get(message["rid"], 0) + 1
                        if joined[message["rid"]] == len(self._channels):
                            del joined[message["rid"]]
                            self._nodes.tell(message)
                    message = end.receive(0.0) if end.ready() else None
        time.sleep(0.05)
        self._reap()
        for name, pid in self._children.items():
            self.log.error(f"Scheduler or DataParallelController {pid} terminated with {self._exit_codes.get(name)}")

    # Serving

    def serve(self) -> int:
        """uvicorn's part. Returns the exit status."""
        from sglang.stand_in.api import Api
        from sglang.stand_in.engine import Engine
        from sglang.stand_in.http import HttpServer, Request

        resolved = self.settings.resolved
        self.engine = Engine(
            schedulers=self._channels,
            detokenizer=self._detokenizer,
            nodes=self._nodes.channels,
            node_lost=self._node_lost,
        )
        watch = self._watch_children if self._release.traits["child_watchdog"] else self._note_dead_children
        threading.Thread(target=watch, daemon=True).start()
        pid = os.getpid()
        self.log.uvicorn("info", f"Started server process [{pid}]")
        self.log.uvicorn("info", "Waiting for application startup.")
        signal.signal(signal.SIGTERM, self._on_sigterm)
        signal.signal(signal.SIGQUIT, self._on_sigquit)
        with self._steps.run("bind"):
            pass
        self._say("rerank_tokens")
        api = Api(self)
        excluded = tuple(resolved["uvicorn_access_log_exclude_prefixes"] or ())

        def access(client: str, request: Request, status: int) -> None:
            from sglang.stand_in.http import REASONS

            if not (excluded and request.path.startswith(excluded)):
                version = request.headers[":version"]
                self.log.access(f'{client} - "{request.method} {request.target} {version}" {status} {REASONS[status]}')

        http = HttpServer(
            handler=api.handle,
            access=access,
            tls=self._tls(),
            keep_alive=float(os.environ.get("SGLANG_TIMEOUT_KEEP_ALIVE", "5")),
        )
        host, port, reuse_port = self.faults.listen(resolved["host"], resolved["port"])
        self._address = host, port
        warm_up = threading.Thread(target=self._warm_up)
        warm_up.start()
        self.log.uvicorn("info", "Application startup complete.")
        try:
            http.bind(host, port, reuse_port=reuse_port)
        except OSError as error:
            self.log.uvicorn("error", _bind_error(error, host, port))
            self.log.uvicorn("info", "Waiting for application shutdown.")
            self.truth.note("bind_failed", errno=error.errno)
            self._join(warm_up)
            self.log.uvicorn("info", "Application shutdown complete.")
            self.kill_children()
            return int(self._release.traits["bind_failed_status"])
        self._bound = True
        self.truth.note("port_bound", port=port)
        scheme = "https" if resolved["ssl_certfile"] else "http"
        shown = f"[{host}]" if ":" in host else host
        self.log.uvicorn("info", f"Uvicorn running on {scheme}://{shown}:{port} (Press CTRL+C to quit)")
        self._note_ready()
        by_signal = self._wait_for_stop()
        time.sleep(self.times.seconds("stop_tick"))
        self.log.uvicorn("info", "Shutting down")
        http.close()
        self.truth.note("port_closed")
        if http.busy():
            self.log.uvicorn("info", "Waiting for connections to close. (CTRL+C to force quit)")
        while http.busy():
            time.sleep(0.01)
        time.sleep(self.times.seconds("stop_tick"))
        self.log.uvicorn("info", "Waiting for application shutdown.")
        self._join(warm_up)
        self.log.uvicorn("info", "Application shutdown complete.")
        self.log.uvicorn("info", f"Finished server process [{pid}]")
        self.kill_children()
        time.sleep(self.times.seconds("exit"))
        if by_signal:
            # uvicorn raises the signal again after its own shutdown.
            self.truth.note("exited", signal=int(signal.SIGTERM))
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(pid, signal.SIGTERM)
        return 0

    def _tls(self) -> ssl.SSLContext | None:
        resolved = self.settings.resolved
        if not resolved["ssl_certfile"]:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(resolved["ssl_certfile"], resolved["ssl_keyfile"], resolved["ssl_keyfile_password"])
        return context

    @staticmethod
    def _join(thread: threading.Thread) -> None:
        # In slices, so that signals are handled meanwhile.
        while thread.is_alive():
            thread.join(0.1)

    def _on_sigterm(self, _signum: int, _frame: Any) -> None:
        """uvicorn's handler until the first request, then SGLang's (tokenizer_manager.py:2443-2460, 4068)."""
        if not self._term.is_set():
            self._term_monotonic = time.monotonic()
            self.truth.note("term_received", draining=self.engine.first_request.is_set())
            self.faults.strike("term", "main", "begin")
        if self.engine.first_request.is_set():
            self.log.warning("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
            self.draining = True
        self._term.set()

    def _wait_for_stop(self) -> bool:
        """Block until the server may close its port; True when uvicorn stops by itself for the signal."""
        while not self._term.wait(0.5):
            pass
        if not self.draining:
            return True
        self._drain()
        return False

    def _drain(self) -> None:
        """sigterm_watchdog (tokenizer_manager.py:3502-3580): no limit for requests in flight."""
        poll = self.times.seconds("drain_poll")
        fixed = os.environ.get("STAND_IN_DRAIN_S")
        if fixed is not None:
            wait = float(fixed)
        else:
            # Its 5 s rhythm began with the first request; where in it the signal falls is chance.
            wait = time.monotonic() % poll if poll > 0 else 0.0
        time.sleep(max(0.0, self._term_monotonic + wait - time.monotonic()))
        while True:
            remaining_rids = list(self.engine.requests)
            if self.status == "UnHealthy":
                self.log.error("Signal SIGTERM received while health check failed. Force exiting.")
                break
            if os.environ.get("SGL_FORCE_SHUTDOWN", "").lower() in ("1", "true"):
                self.log.error("Signal SIGTERM received while force shutdown flag set. Force exiting.")
                break
            self._say("remaining", count=len(remaining_rids), rids=remaining_rids)
            if not remaining_rids:
                break
            time.sleep(poll)
        self._watching.set()
        if self._release.traits["drain_ends"] == "kill":
            self.kill_tree()
        self.engine.shutdown()
        time.sleep(self.times.seconds("stop_schedulers"))
        deadline = time.monotonic() + self.times.seconds("stop_limit")
        while (left := self._schedulers_alive()) and time.monotonic() < deadline:
            time.sleep(0.01)
        if left:
            self.log.warning(
                f"Schedulers still alive {self.times.seconds('stop_limit'):g}s after ShutdownReq,"
                f" killing them before they released: {left}"
            )
        self.kill_children()

    def _warm_up(self) -> None:
        """The thread that asks over HTTP whoever answers on the port (http_server.py:2357-2610)."""
        import http.client
        import urllib.request

        failures = (OSError, ValueError, http.client.HTTPException)
        resolved = self.settings.resolved
        if resolved["skip_server_warmup"]:
            self._up()
        else:
            error = ""
            info: dict[str, Any] | None = None
            for _ in range(120):
                time.sleep(self.times.seconds("warm_up_poll"))
                try:
                    info = json.loads(self._ask(urllib.request, self._release.traits["loopback_info"], timeout=5))
                    break
                except failures:
                    error = traceback.format_exc()
            if info is None:
                self.log.error(f"Initialization failed. warmup error: {error}")
                self.kill_tree()
            text = "The capital city of France is"
            sampling = {"temperature": 0, "max_new_tokens": 8}
            if info.get("has_image_understanding"):
                path = "/v1/chat/completions"
                body: dict[str, Any] = {
                    "model": resolved["served_model_name"],
                    "messages": [{"role": "user", "content": [{"type": "text", "text": "Describe the image."}]}],
                    "max_tokens": 8,
                    "temperature": 0.0,
                }
            else:
                path = "/generate"
                copies = self.settings.resolved["dp_size"]
                body = {"text": text if copies == 1 else [text] * copies, "sampling_params": sampling}
            limit = float(os.environ.get("SGLANG_WARMUP_TIMEOUT", "-1"))
            try:
                self._ask(urllib.request, path, body=body, timeout=limit if limit > 0 else 600)
            except failures:
                self.log.error(f"Initialization failed. warmup error: {traceback.format_exc()}")
                self.kill_tree()
            self._up()
        if self._release.traits["server_info"] == "full":
            try:
                self._ask(urllib.request, "/freeze_gc", body={}, timeout=10, admin=True)
            except OSError:
                self.log.warning(f"post-warmup freeze_gc failed\n{traceback.format_exc().rstrip()}")
        self.log.info(self._release.message("fired_up"))

    def _up(self) -> None:
        self.status = "Up"
        self._note_ready()

    def _note_ready(self) -> None:
        """Once, when there are both: a port of our own and a warm engine (--skip-server-warmup may be up before)."""
        with self._noting:
            if self._bound and self.status == "Up" and not self._noted_ready:
                self._noted_ready = True
                self.truth.note("ready")
                threading.Thread(target=self.faults.strike, args=("ready", "main", "begin"), daemon=True).start()

    def _ask(
        self, request: Any, path: str, *, timeout: float, body: dict[str, Any] | None = None, admin: bool = False
    ) -> bytes:
        """One HTTP request to our own address. Proxy variables count, as they do for `requests`."""
        resolved = self.settings.resolved
        host, port = self._address
        host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        host = f"[{host}]" if ":" in host else host
        scheme = "https" if resolved["ssl_certfile"] else "http"
        headers = {"Content-Type": "application/json", "User-Agent": "python-requests/2.32.5"}
        key = (resolved["admin_api_key"] or resolved["api_key"]) if admin else resolved["api_key"]
        if key:
            headers["Authorization"] = f"Bearer {key}"
        call = request.Request(
            f"{scheme}://{host}:{port}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers=headers,
        )
        context = ssl._create_unverified_context() if scheme == "https" else None
        with request.urlopen(call, timeout=timeout, context=context) as reply:
            data: bytes = reply.read()
            return data

    # Crash and end

    def wait_while_frozen(self) -> None:
        """A crashing main blocks its event loop: the port is open and nobody answers."""
        while self._frozen.is_set():
            time.sleep(3600)

    def _reap(self) -> None:
        with self._reaping:
            for name, pid in self._children.items():
                if name not in self._exit_codes:
                    found, status = os.waitpid(pid, os.WNOHANG)
                    if found:
                        self._exit_codes[name] = _exit_code(status)

    def _watch_children(self) -> None:
        """SubprocessWatchdog (utils/watchdog.py:165-225)."""
        while not self._watching.wait(max(0.005, self.times.seconds("watchdog"))):
            self._reap()
            if any(self._exit_codes.values()):
                # A signal to all ends them within milliseconds; looking once a second, the real one sees all dead.
                time.sleep(0.02)
                self._reap()
                name = next(name for name in self._children if self._exit_codes.get(name))
                self.log.error(
                    f"Subprocess {name} (pid={self._children[name]}) crashed with exit code {self._exit_codes[name]}."
                    " Triggering SIGQUIT for cleanup..."
                )
                os.kill(os.getpid(), signal.SIGQUIT)
                return

    def _note_dead_children(self) -> None:
        """Releases without that watchdog go on without the child; 0.4.6 says so (SIGCHLD, entrypoints/engine.py:456)."""
        told: set[str] = set()
        while not self._watching.wait(max(0.005, self.times.seconds("watchdog"))):
            self._reap()
            for name, code in self._exit_codes.items():
                if code and name not in told:
                    told.add(name)
                    self._note_child_failed(-code if code < 0 else code << 8, self._children[name])

    def _note_child_failed(self, status: int, pid: int) -> None:
        if self._release.says("child_failed"):
            self.log.warning(self._release.message("child_failed", status=status, pid=pid))

    def _schedulers_alive(self) -> list[int]:
        self._reap()
        return [
            pid for name, pid in self._children.items() if name.startswith("scheduler") and name not in self._exit_codes
        ]

    def _launch_sigquit(self, _signum: int, _frame: Any) -> None:
        self.log.error(self._release.message("sigquit_launch"))
        self.kill_tree()

    def _on_sigquit(self, _signum: int, _frame: Any) -> None:
        if not self.engine.first_request.is_set() or not self._release.says("sigquit_running"):
            self._launch_sigquit(_signum, _frame)
        self._frozen.set()
        self._watching.set()
        self.log.error(self._release.message("sigquit_running"))
        self.truth.note("crashing")
        if not self._release.traits["crash_diagnostics"]:
            self.kill_tree()
        self.log.info("Sleeping 5 seconds before crash diagnostics to let GPU activity settle.")
        time.sleep(self.times.seconds("crash_settle"))
        alive = self._schedulers_alive()
        if not alive:
            self.log.error("No live scheduler processes found; skipping py-spy and CUDA coredump.")
        for pid in alive:
            for native in (" --native", ""):
                self.log.error(
                    f"Pyspy failed (py-spy dump{native} --pid {pid})."
                    " Error: Error: Permission Denied: Try running again with elevated permissions by going 'sudo env'\n"
                )
            self.log.error(f"All pyspy dump attempts failed for PID {pid}.")
        self.kill_tree()

    def _kill(self) -> None:
        self._watching.set()
        for name, pid in self._children.items():
            if name not in self._exit_codes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if self._tracker:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._tracker, signal.SIGKILL)

    def kill_children(self) -> None:
        """kill_process_tree(include_parent=False): returns when all are gone."""
        _log_kill(self.log, self._release, include_parent=False)
        self._kill()
        while len(self._exit_codes) < len(self._children):
            self._reap()
            time.sleep(0.002)

    def kill_tree(self) -> NoReturn:
        """kill_process_tree of itself: SIGKILL, or status 0 where that does nothing (process 1)."""
        _log_kill(self.log, self._release, include_parent=True)
        self._kill()
        self.truth.note("crashed", signal=int(signal.SIGKILL))
        os.kill(os.getpid(), signal.SIGKILL)
        os._exit(0)


def _exit_code(status: int) -> int:
    """As multiprocessing gives it: -N for signal N."""
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _bind_error(error: OSError, host: str, port: int) -> str:
    import socket

    if isinstance(error, socket.gaierror):
        return str(error)
    reason = os.strerror(error.errno or 0).lower()
    return f"[Errno {error.errno}] error while attempting to bind on address ({host!r}, {port}): {reason}"
