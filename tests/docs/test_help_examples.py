"""The examples in the help of every command are run: in a folder that has what they name."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.docs._follow import here
from tests.docs._terminal import PATIENCE_S, Terminal
from tests.unit.test_cli_help import COMMANDS, examples

from headrace.demo import messages

APP = """
from pathlib import Path

from headrace import App, Event, Model, RetryPolicy

class Ticket(Event, topic="tickets", key="customer"):
    customer: str
    text: str
    ticket_id: str = ""

class Routed(Event, topic="routed", key="customer"):
    customer: str
    intent: str

app = App("support")

@app.handler(model=Model.onnx("intent.onnx"), retry=RetryPolicy(attempts_max=1))
async def route(ticket: Ticket, model) -> Routed:
    if not ticket.text and Path("strict").exists():
        raise ValueError("a ticket without words")
    label = await model(ticket.text)
    return Routed(customer=ticket.customer, intent=label.name)
"""
#: The id that examples name, and as many events that die as they count on.
EVENT_ID, LETTERS = "01a22a41-9f19-79cd-8000-000000000001", 12
#: What no machine of a test has, and what stands for it.
PLACES = (
    ("/var/lib/support/", "./var/"),
    ("/mnt/other/", "./mnt/"),
    ("9464", "0"),  # a port that is free
    ("20000", "200"),
    ("redrive 12", "redrive 12 --yes"),  # they ask, and there is no terminal
    ("drop 12", "drop 12 --yes"),
)
#: What works until it is stopped.
LASTING = ("headrace run ", "headrace dev ", "--follow", "tail -F")
#: An example that lasts has begun by then, or has failed.
AT_WORK_S = 2.5
#: Examples of one command that run beside each other: most of those that last only wait.
AT_ONCE = 3
#: It needs a broker and is run with one: tests/services/test_copy.py, test_kafka_upkeep.py.
ELSEWHERE = {("copy",), ("index", "rebuild"), ("index", "verify")}


def publish(terminal: Terminal, customer: str, text: str, *options: str) -> None:
    """Publish one ticket."""
    payload = json.dumps({"customer": customer, "text": text})
    code, said = terminal.run(f"headrace publish app:app Ticket '{payload}' {' '.join(options)}")
    assert code == 0, said


def handled(terminal: Terminal) -> None:
    """Run a worker until it has nothing to do."""
    terminal.run("headrace run app:app 2>run.log &")
    terminal.until_idle()
    assert terminal.interrupt() == [130]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an app, two versions of its model, a history, dead letters and files of inputs."""
    folder = tmp_path_factory.mktemp("stage") / "stage"
    for name in ("var", "mnt", "shop", "backups", ".zfunc", ".config/fish/completions"):
        (folder / name).mkdir(parents=True)
    (folder / ".local/share/bash-completion/completions").mkdir(parents=True)
    (folder.parent / "lib").mkdir()
    (folder / "app.py").write_text(APP, "utf-8")
    (folder / "shop/app.py").write_text(APP, "utf-8")
    lines(folder)
    with Terminal(folder, here(dict(os.environ))) as terminal:
        terminal.run("headrace demo --model-to shipped.onnx")
        terminal.run("(cat shipped.onnx; printf '\\032\\0012') > intent.onnx")
        publish(terminal, "ada", "how do you say thank you in Italian", f"--id {EVENT_ID}")
        publish(terminal, "bob", "translate good morning into Greek", "--id mail-4711")
        assert terminal.run("headrace publish app:app Ticket @first.jsonl")[0] == 0
        terminal.run("touch strict")
        handled(terminal)
        terminal.run("rm strict")
        terminal.run("mv shipped.onnx intent.onnx")
        handled(terminal)
        code, said = terminal.run("headrace replay app:app route --side trial --to 2")
        assert code == 0, said
        assert terminal.run("cp headrace.db var/headrace.db")[0] == 0
    return folder


def lines(folder: Path) -> None:
    """Write the files of inputs that examples name."""
    tickets = [{"customer": "ada", "text": "my card is lost", "ticket_id": f"t-{n}"} for n in range(3)]
    for name in ("tickets.jsonl", "export.jsonl", "new.jsonl"):
        (folder / name).write_text("".join(json.dumps(one) + "\n" for one in tickets), "utf-8")
    first = [{"customer": "customer-4711", "text": "my card is lost"}]
    first += [{"customer": f"eve-{number}", "text": ""} for number in range(LETTERS)]
    (folder / "first.jsonl").write_text("".join(json.dumps(one) + "\n" for one in first), "utf-8")
    known = [(text, name) for name, texts in messages.INTENTS.items() for text in texts[:1]]
    known = [(text.replace("{", "").replace("}", ""), name) for text, name in known]
    labelled = [*known, *((text, None) for text in messages.OFF_TOPIC)] * 3
    rows = [{"text": text, "intent": intent, "message": text, "topic": intent} for text, intent in labelled]
    for name in ("labelled", "val", "test"):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows), "utf-8")


def lasts(line: str) -> bool:
    """Tell whether an example works until it is stopped."""
    return any(word in line for word in LASTING)


def ran(folder: Path, line: str) -> tuple[int, str]:
    """Run an example; one that would last is given Ctrl-C once it is at work."""
    environment = here(dict(os.environ)) | {"HOME": str(folder), "COLUMNS": "100"}
    for there, stands in PLACES:
        line = line.replace(there, stands)
    command = line.partition(" | jq")[0]  # not every machine has it
    if "demo" in line:
        (folder / "headrace.db").unlink()
    process = subprocess.Popen(
        ["bash", "-c", f"set -o pipefail; {command}"], cwd=folder, env=environment, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        if lasts(line):
            time.sleep(AT_WORK_S)
            os.killpg(process.pid, signal.SIGINT)
        said, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode, said


@pytest.mark.parametrize("path", [path for path in COMMANDS if path not in ELSEWHERE], ids=" ".join)
@pytest.mark.timeout(300)
def test_the_examples_of_a_command_do_what_they_say(
    stage: Path, tmp_path: Path, path: tuple[str, ...]
) -> None:
    """Each ends well, in a folder of its own; or was at work until it got Ctrl-C."""
    found = examples(COMMANDS[path])
    folders = [tmp_path / str(number) / "stage" for number in range(len(found))]
    for folder in folders:
        shutil.copytree(stage, folder)
        (folder.parent / "lib").mkdir()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for line, (code, said) in zip(found, pool.map(ran, folders, found), strict=True):
            assert code in ((0, 130, -signal.SIGINT) if lasts(line) else (0,)), f"{line}\n{said}"
            assert "error[" not in said, f"{line}\n{said}"
