"""What is written is whole or not there, and nothing that is not ours is replaced, followed or removed."""

import ast
import os
import re
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import HANG, until

import uwaga
from uwaga._base import durable
from uwaga._base.durable import PathConflictError

NAMES = re.compile(r"lock|data")
THERE = "cannot be used: it already exists"
NO_FILE = "cannot be used: it is a link or a folder, not a file"


def refusal(do: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(PathConflictError) as caught:
        do()
    assert isinstance(caught.value, FileExistsError)
    return str(caught.value.filename), str(caught.value.strerror)


def write(path: Path, text: bytes, how: Callable = durable.atomic_replace) -> None:
    with how(path) as file:
        file.write(text)


def interrupt(path: Path, how: Callable = durable.atomic_replace) -> None:
    def write_half() -> None:
        with how(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()


def lock(path: Path) -> None:
    with durable.file_lock(path, wait=False):
        pass


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_replaces_what_has_its_name_and_nothing_else(tmp_path: Path) -> None:
    mine, path = tmp_path / "mine", tmp_path / "page.html"
    mine.write_bytes(b"mine")
    (tmp_path / "page.html.unfinished").symlink_to(mine)
    write(path, b"one")
    write(path, b"two")
    assert path.read_bytes() == b"two"
    path.unlink()
    path.symlink_to(mine)
    write(path, b"three")
    assert not path.is_symlink()
    assert (path.read_bytes(), mine.read_bytes()) == (b"three", b"mine")
    assert names(tmp_path) == ["mine", "page.html", "page.html.unfinished"]


def test_a_device_is_written_into_and_stays(tmp_path: Path) -> None:
    """Another name of /dev/null, which only root may make; of others, a link to it."""
    path = tmp_path / "null"
    if os.geteuid() == 0:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    else:
        path.symlink_to("/dev/null")
    before = path.lstat()
    write(path, b"x")
    assert path.lstat() == before
    assert path.is_char_device()
    assert names(tmp_path) == ["null"]


@pytest.mark.parametrize("is_link", [False, True])
def test_a_pipe_gets_what_is_complete(tmp_path: Path, is_link: bool) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    path = tmp_path / "link" if is_link else pipe
    if is_link:
        path.symlink_to(pipe)
    unread = (str(path), "cannot be used: it is a pipe that no program reads; start the reader first")
    assert refusal(lambda: write(path, b"x")) == unread
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        interrupt(path)
        with durable.atomic_replace(path) as file:
            file.write(b"xx")
            file.seek(0)  # as formats do that begin with a size
            file.write(b"y")
        assert os.read(reader, 9) == b"yx"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    assert path.is_symlink() == is_link
    assert set(names(tmp_path)) == {"pipe", path.name}


def test_a_socket_a_disk_and_the_folders_of_devices_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        (tmp_path / "link").symlink_to(tmp_path / "s")
        for path in (tmp_path / "s", tmp_path / "link"):
            assert refusal(lambda path=path: write(path, b"x")) == (
                str(path), "cannot be used: it is a socket, not a file",
            )  # fmt: skip
        assert (tmp_path / "s").is_socket()
    if os.geteuid() == 0:
        os.mknod(tmp_path / "disk", 0o600 | stat.S_IFBLK, os.makedev(259, 1023))  # none has this number
        said = "cannot be used: it is a block device, not a file"
        assert refusal(lambda: write(tmp_path / "disk", b"x")) == (str(tmp_path / "disk"), said)
        assert (tmp_path / "disk").is_block_device()
    said = "cannot be used: there are devices and open files in its folder, which are not replaced; name a file"
    with (tmp_path / "open").open("wb") as file:
        for path in (Path(f"/proc/self/fd/{file.fileno()}"), Path("/dev/uwaga-does-not-exist")):
            assert refusal(lambda path=path: write(path, b"x")) == (str(path), said)


@pytest.mark.parametrize("how", [durable.atomic_replace, durable.atomic_create])
def test_a_failure_leaves_nothing_and_names_the_file_as_the_user_does(tmp_path: Path, how: Callable) -> None:
    long = "ż" * 120 + ".html"
    interrupt(tmp_path / long, how)
    assert names(tmp_path) == []
    with pytest.raises(FileNotFoundError) as caught:
        write(tmp_path / "none" / "page.html", b"", how)
    assert caught.value.filename == str(tmp_path / "none" / "page.html")
    write(tmp_path / long, b"x", how)
    assert names(tmp_path) == [long]


def test_a_file_that_a_library_replaced_has_the_permissions_of_a_new_one(tmp_path: Path) -> None:
    with durable.atomic_create(tmp_path / "file") as file:
        other = tmp_path / "other"
        other.write_bytes(b"content")
        other.chmod(0o600)
        other.replace(file.name)
    (tmp_path / "new").touch()
    assert (tmp_path / "file").read_bytes() == b"content"
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "new").stat().st_mode


def test_a_new_file_takes_no_name_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, link = tmp_path / "mine", tmp_path / "link"
    mine.write_bytes(b"mine")
    link.symlink_to(tmp_path / "nowhere")
    for path in (mine, link):
        assert refusal(lambda path=path: write(path, b"x", durable.atomic_create)) == (str(path), THERE)
        assert refusal(lambda path=path: durable.create_file(path)) == (str(path), THERE)
    late = tmp_path / "late"

    def come_late() -> None:
        with durable.atomic_create(late):
            late.write_bytes(b"mine")

    assert refusal(come_late) == (str(late), THERE)

    def no_links(*arguments: object, **named: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    late.unlink()
    monkeypatch.setattr(os, "link", no_links)
    assert refusal(come_late) == (str(late), THERE)
    assert late.read_bytes() == mine.read_bytes() == b"mine"
    write(tmp_path / "new", b"x", durable.atomic_create)
    assert names(tmp_path) == ["late", "link", "mine", "new"]


def test_a_lock_is_never_written_to_and_never_a_link(tmp_path: Path) -> None:
    mine, link = tmp_path / "mine", tmp_path / "link"
    mine.write_bytes(b"mine")
    link.symlink_to(mine)
    lock(mine)
    assert mine.read_bytes() == b"mine"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for path in (link, tmp_path / "pipe", tmp_path / "folder"):
        assert refusal(lambda path=path: lock(path)) == (str(path), NO_FILE)
    with durable.file_lock(tmp_path / "lock"), pytest.raises(BlockingIOError):
        lock(tmp_path / "lock")


def test_a_lock_that_was_removed_while_one_waited_holds_nobody(tmp_path: Path) -> None:
    """The one that waited takes the lock of a new file, not of the removed one."""
    path, result = tmp_path / "lock", []

    def wait() -> None:
        with durable.file_lock(path):
            result.append(path.exists())

    with durable.file_lock(path):
        other = threading.Thread(target=wait)
        other.start()
        until(lambda: [os.readlink(x) for x in Path("/proc/self/fd").iterdir() if x.is_symlink()].count(str(path)) == 2)
        path.unlink()
    other.join(HANG)
    assert result == [True]


def test_a_file_that_is_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "metrics"
    with durable.open_append(path, lambda first: first == b"", size=0) as file:
        file.write(b"one two")
    with durable.open_append(path, lambda first: first == b"one two", size=3) as file:
        file.write(b" three")
    assert path.read_bytes() == b"one three"
    strange = (str(path), "cannot be used: it is not a file that uwaga wrote")
    assert refusal(lambda: durable.open_append(path, lambda first: False, size=0)) == strange
    os.link(path, tmp_path / "second")
    twice = (str(path), "cannot be used: it is a file with a second name (a hard link)")
    assert refusal(lambda: durable.open_append(path, lambda first: True, size=0)) == twice
    (tmp_path / "link").symlink_to(path)
    assert refusal(lambda: durable.open_append(tmp_path / "link", lambda first: True, size=0))[1] == NO_FILE
    assert path.read_bytes() == b"one three"


def test_a_folder_of_ours_is_taken_again_and_removed_but_what_somebody_put_into_it_stays(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    assert durable.is_uwaga_folder(folder)
    (folder / ".lock.uwaga-0123456789abcdef").write_bytes(b"half")  # making it was interrupted
    for _ in range(2):
        durable.ensure_marked_folder(folder)
        write(folder / "data", b"x")
    assert names(folder) == [".lock.uwaga-0123456789abcdef", durable.MARK_FILE, "data"]
    (folder / "notes").write_text("mine")
    (folder / "lock").symlink_to(tmp_path)
    assert not durable.contains_only(folder, NAMES)
    assert not durable.remove_folder(folder, NAMES)
    assert names(folder) == [durable.MARK_FILE, "lock", "notes"]
    (folder / "notes").unlink()
    (folder / "lock").unlink()
    assert durable.remove_folder(folder, NAMES)
    assert not folder.exists()


@pytest.mark.parametrize("content", ["file", "folder", "link", "mark"])
def test_a_folder_of_somebody_else_is_neither_taken_nor_removed(tmp_path: Path, content: str) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    if content == "folder":
        (folder / "data").mkdir()
    elif content == "link":
        (folder / "data").symlink_to(tmp_path)
    else:
        (folder / ("data" if content == "file" else durable.MARK_FILE)).write_text("mine")
    why = "cannot be used: it is not a folder that uwaga made, which has a file .uwaga; move it away"
    assert refusal(lambda: durable.ensure_marked_folder(folder)) == (str(folder), why)
    new = "cannot be used: it already exists; move it away"
    assert refusal(lambda: durable.create_marked_folder(folder)) == (str(folder), new)
    durable.create_marked_folder(tmp_path / "one")
    assert refusal(lambda: durable.rename_folder(tmp_path / "one", folder)) == (str(folder), new)
    assert not durable.remove_folder(folder, NAMES)
    assert len(names(folder)) == 1


def test_a_link_to_a_folder_and_a_file_are_no_folders_of_ours(tmp_path: Path) -> None:
    durable.create_marked_folder(tmp_path / "elsewhere")
    write(tmp_path / "elsewhere" / "data", b"x")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "link", tmp_path / "file"):
        assert refusal(lambda path=path: durable.ensure_marked_folder(path))[0] == str(path)
        assert not durable.remove_folder(path, NAMES)
        assert not durable.contains_only(path, NAMES)
    assert names(tmp_path / "elsewhere") == [durable.MARK_FILE, "data"]


def test_a_mark_that_is_something_else_is_none(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    durable.ensure_marked_folder(folder)
    mark = folder / durable.MARK_FILE
    text = mark.read_bytes()
    mark.unlink()
    (folder / "notes").write_text("mine")
    os.mkfifo(mark)  # reading it would wait
    assert not durable.is_uwaga_folder(folder)
    mark.unlink()
    with mark.open("wb") as file:
        file.truncate(2**40)  # reading all of it would take all memory
    assert not durable.is_uwaga_folder(folder)
    mark.unlink()
    (tmp_path / "elsewhere").write_bytes(text)
    mark.symlink_to(tmp_path / "elsewhere")
    assert not durable.is_uwaga_folder(folder)


def test_files_are_removed_by_their_names_and_not_through_a_link(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    for name in ("data", "other", ".data.uwaga-0123456789abcdef", ".other.uwaga-0123456789abcdef"):
        (folder / name).write_bytes(b"x")
    (folder / "link").symlink_to(folder / "other")
    (tmp_path / "alias").symlink_to(folder)
    said = (str(tmp_path / "alias"), "cannot be used: it is a link or a file, not a folder")
    assert refusal(lambda: durable.remove_files(tmp_path / "alias", ["data"])) == said
    durable.remove_files(folder, ["data", "link", "absent"])
    assert names(folder) == [".other.uwaga-0123456789abcdef", "link", "other"]


def test_a_folder_is_there_with_all_that_is_in_it_or_not_at_all(tmp_path: Path) -> None:
    with durable.atomic_folder(tmp_path / "new" / "folder") as made:
        (made / "data").write_bytes(b"x")
        assert not (tmp_path / "new" / "folder").exists()
    assert names(tmp_path / "new") == ["folder"]

    def interrupted() -> None:
        with durable.atomic_folder(tmp_path / "other") as made:
            (made / "data").symlink_to(tmp_path / "new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    said = (str(tmp_path / "new"), "cannot be used: it already exists; move it away")

    def existing() -> None:
        with durable.atomic_folder(tmp_path / "new"):
            pass

    assert refusal(existing) == said
    assert names(tmp_path) == ["new"]
    assert names(tmp_path / "new" / "folder") == ["data"]


def test_a_private_folder_is_for_this_account_alone() -> None:
    folder = durable.PrivateFolder()
    path = folder.write("open.html", b"x")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    with pytest.raises(FileExistsError):
        folder.write("open.html", b"y")
    folder.close()
    folder.close()
    assert not path.parent.exists()


# Names that write, remove or rename. Where a name is common to other things, see `writes`.
WRITERS = {
    "unlink", "rmdir", "remove", "rename", "renames", "mkdir", "makedirs", "touch", "write_text", "write_bytes", "symlink",
    "symlink_to", "hardlink_to", "truncate", "ftruncate", "flock", "lockf", "rmtree", "mkstemp", "mkdtemp", "memmap",
    "NamedTemporaryFile", "TemporaryFile", "TemporaryDirectory", "SpooledTemporaryFile", "tofile", "mkfifo", "copyfile",
    "copytree", "chmod", "chown", "urlretrieve", "extractall", "to_parquet",
}  # fmt: skip
# What writes where it is told to by a library: a file that durable opened, or what is in memory.
ALLOWED = {
    ("cli/serve.py", "TemporaryDirectory"),
    ("models/checkpoints/load_save.py", "save_file"),
    ("train/checkpoint.py", "save_file"),
    ("inspect/recordings/files.py", "save_file"),
    ("plots/figures.py", "savefig"),
    ("plots/shown_figure.py", "savefig"),  # a BytesIO
    ("viewer/queries/weights.py", "savez_compressed"),  # a BytesIO
    ("train/corpus.py", "memmap"),  # mode="r"
    ("_base/untrusted.py", "open"),  # os.O_RDONLY
    ("viewer/page/bundle.py", "mkdir"),  # into a wheel that is built
    ("viewer/page/bundle.py", "write_bytes"),
    ("train/logger.py", "SummaryWriter"),  # TensorBoard's own files, under names that are new
}
TAKING_PATHS = {"SummaryWriter", "save_file", "savefig", "savez", "savez_compressed", "savetxt"}
OPENERS = {"open", "fdopen"}


def writes(name: str, call: ast.Call) -> bool:
    """Whether a call of what ends with this name writes or removes."""
    if name in WRITERS | TAKING_PATHS:
        return name != "remove" or ast.unparse(call.func) == "os.remove"  # lists have one too
    if name == "replace":  # str.replace takes two; dataclasses.replace and NamedTuple._replace name theirs
        return len(call.args) == 1 and not call.keywords and ast.unparse(call.func) != "dataclasses.replace"
    if name not in OPENERS:
        return False
    if ast.unparse(call.func) == "os.open":
        return ast.unparse(call.args[0]) != "os.devnull"
    arguments = call.args[0 if isinstance(call.func, ast.Attribute) else 1 :]
    arguments += [x.value for x in call.keywords if x.arg == "mode"]
    modes = [x.value for x in arguments if isinstance(x, ast.Constant) and isinstance(x.value, str)]
    return any(set(mode) & set("wax+") and len(mode) <= 3 for mode in modes)


@pytest.mark.slow
def test_nothing_else_in_the_package_writes_or_removes() -> None:
    root = Path(uwaga.__file__).parent
    results = []
    for path in sorted(set(root.rglob("*.py")) - {root / "_base" / "durable.py"}):
        place = path.relative_to(root).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str | None] = []
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
                names = [name] if writes(name, node) else []
            elif isinstance(node, ast.Import | ast.ImportFrom):
                imported = {node.module} if isinstance(node, ast.ImportFrom) else {x.name for x in node.names}
                names = list(imported & {"shutil", "tempfile", "fcntl"})
            results += [f"{place}:{node.lineno}: {name}" for name in names if (place, name) not in ALLOWED]
    assert results == []
