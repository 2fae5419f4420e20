"""The standard library in memory: programs import it without reading a file.

The machine remembers whether a page of a file is in its memory, and when it was read last: by files that they
read, programs could tell one another something. Run as a script, with a descriptor, this writes the library
as one image to it and prints the files that are left to read: shared libraries. A zygote maps the image and
imports from it. Standard library only.
"""

import _imp
import contextlib
import ctypes
import importlib.util
import io
import json
import marshal
import mmap
import os
import select
import struct
import sys
import sysconfig
from collections.abc import Iterator
from importlib._bootstrap_external import _LoaderBasics  # type: ignore[attr-defined]
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from types import CodeType, ModuleType, SimpleNamespace

# Folders of packages, where rlnb may lie, with the answers of its tasks, and of what no program needs.
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo"}
EXTENSIONS_LEFT_OUT = ("_test", "_ctypes_test", "_tkinter", "_xx", "xx", "nis.", "ossaudiodev")
TIME_ZONES, LEFT_OUT_ZONES = "/usr/share/zoneinfo", {"posix", "right"}
PYC_HEADER = 16
Place = tuple[int, int]  # first byte of an entry and the one behind it


class Library(_LoaderBasics):  # no traceback shows the frames of this class
    """Finds and loads the modules of an image: for `sys.meta_path`. files: shared libraries to be read."""

    def __init__(self, descriptor: int) -> None:
        self.image = memoryview(mmap.mmap(descriptor, 0, mmap.MAP_PRIVATE, mmap.PROT_READ))
        self.start = 8 + int.from_bytes(self.image[:8], "little")
        # {name: (path of its source, whether it is a package, whether it is compiled, place)}
        self.modules: dict[str, tuple[str, bool, bool, Place]]
        self.extensions: dict[str, str]
        self.zones: dict[str, Place]
        self.modules, self.extensions, self.zones, self.files = marshal.loads(self.image[8 : self.start])
        self.patcher = Patcher(self)

    def read(self, place: Place) -> memoryview:
        return self.image[self.start + place[0] : self.start + place[1]]

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return the spec of a module, None where the image has none of that name."""
        if name in self.extensions:
            origin, is_package = self.extensions[name], False
            loader: object = ExtensionFileLoader(name, origin)
        elif name in self.modules:
            origin, is_package, _, _ = self.modules[name]
            loader = self.patcher if name in PATCHED else self
        else:
            return None
        spec = ModuleSpec(name, loader, origin=origin, is_package=is_package)  # type: ignore[arg-type]
        spec.has_location = True
        if is_package:
            spec.submodule_search_locations = [os.path.dirname(origin)]
        return spec

    def get_code(self, name: str) -> CodeType:
        source, _, is_compiled, place = self.modules[name]
        if not is_compiled:
            return compile(bytes(self.read(place)), source, "exec", dont_inherit=True)
        code: CodeType = marshal.loads(self.read(place))
        _imp._fix_co_filename(code, source)  # type: ignore[attr-defined]
        return code

    def open_zone(self, key: str) -> io.BytesIO:
        """Return the data of a time zone. Raise ZoneInfoNotFoundError."""
        if key not in self.zones:
            raise sys.modules["zoneinfo._common"].ZoneInfoNotFoundError(f"No time zone found with key {key}")
        return io.BytesIO(self.read(self.zones[key]))


PATCHED = ("asyncio.selector_events", "multiprocessing.pool", "zoneinfo._common", "zoneinfo._tzpath")


class Patcher:
    """Loads the modules that would need a file or a socket, and gives them something else."""

    def __init__(self, library: Library) -> None:
        self.library = library

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python make the module."""

    def exec_module(self, module: ModuleType) -> None:
        self.library.exec_module(module)
        if module.__name__ == "asyncio.selector_events":
            module.BaseSelectorEventLoop._make_self_pipe = hang_bell
        elif module.__name__ == "multiprocessing.pool":
            vars(module)["get_context"] = lambda: SimpleNamespace(SimpleQueue=Notifier)  # of a ThreadPool
        elif module.__name__ == "zoneinfo._common":
            vars(module)["load_tzdata"] = self.library.open_zone
        else:
            vars(module)["available_timezones"] = lambda: set(self.library.zones)


class Bell:
    """Wakes an event loop of asyncio, in place of a pair of sockets, whose numbers count the machine's."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def fileno(self) -> int:
        return self.descriptor

    def send(self, data: bytes) -> None:
        os.eventfd_write(self.descriptor, 1)

    def recv(self, size: int) -> bytes:
        os.eventfd_read(self.descriptor)
        return b"\0"

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class Notifier:
    """Wakes the thread that looks after a pool of threads, in place of a queue with a pipe."""

    def __init__(self) -> None:
        self._reader = Bell()

    def put(self, item: object) -> None:
        self._reader.send(b"\0")

    def empty(self) -> bool:
        return not select.select([self._reader], [], [], 0)[0]

    def get(self) -> bytes:
        return self._reader.recv(1)


def hang_bell(loop: object) -> None:
    """Replace `_make_self_pipe` of asyncio's event loops."""
    loop._ssock = loop._csock = bell = Bell()  # type: ignore[attr-defined]
    loop._internal_fds += 1  # type: ignore[attr-defined]
    loop._add_reader(bell.fileno(), loop._read_from_self)  # type: ignore[attr-defined]


def write_image(descriptor: int) -> list[str]:
    """Write this interpreter's library to a file, and return the paths of the others that it may load."""
    parts: list[bytes] = []
    size = 0

    def add(data: bytes) -> Place:
        nonlocal size
        parts.append(data)
        size += len(data)
        return size - len(data), size

    modules = {}
    for root in dict.fromkeys((sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))):
        for path in files_below(root, LEFT_OUT):
            if path.endswith(".py"):
                try:
                    data, is_compiled = read_module(path)
                except OSError:  # a link to nowhere, or another user's: Python could not import it either
                    continue
                name = os.path.relpath(path, root)[: -len(".py")].replace("/", ".")
                is_package = name.endswith("__init__")
                name = name.removesuffix(".__init__")
                modules[name] = path, is_package, is_compiled, add(data)
    zones = {}
    for path in files_below(TIME_ZONES, LEFT_OUT_ZONES):
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError:  # a link to /etc/localtime, which not every machine has
            continue
        if data.startswith(b"TZif"):
            zones[os.path.relpath(path, TIME_ZONES)] = add(data)
    extensions = find_extensions()
    files = load_all(extensions)
    head = marshal.dumps((modules, extensions, zones, files))
    with open(descriptor, "wb", closefd=False) as image:
        image.write(len(head).to_bytes(8, "little") + head)
        image.writelines(parts)
    return files


def files_below(root: str, left_out: set[str]) -> Iterator[str]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(set(folders) - left_out)
        yield from (os.path.join(folder, name) for name in sorted(names))


def read_module(path: str) -> tuple[bytes, bool]:
    """Return a module's code as Python has cached it, or its source, and whether it is code."""
    state = os.stat(path)
    fields = 0, int(state.st_mtime) & 0xFFFFFFFF, state.st_size & 0xFFFFFFFF
    expected = importlib.util.MAGIC_NUMBER + struct.pack("<3I", *fields)
    try:
        with open(importlib.util.cache_from_source(path), "rb") as file:
            if file.read(PYC_HEADER) == expected:
                return file.read(), True
    except OSError:  # it was never imported by a user who may write there
        pass
    with open(path, "rb") as file:
        return file.read(), False


def find_extensions() -> dict[str, str]:
    """Return {name: path} of the extension modules of this interpreter that are files."""
    folders = [folder for folder in sys.path if folder.endswith("lib-dynload")]
    paths = [os.path.join(folder, name) for folder in folders for name in sorted(os.listdir(folder))]
    names = ((os.path.basename(path), path) for path in paths if path.endswith(EXTENSION_SUFFIXES[0]))
    return {name.partition(".")[0]: path for name, path in names if not name.startswith(EXTENSIONS_LEFT_OUT)}


def load_all(extensions: dict[str, str]) -> list[str]:
    """Load extension modules, and return the path of each shared library that is loaded then."""
    for path in extensions.values():
        with contextlib.suppress(OSError):  # it needs a library that is not installed
            ctypes.CDLL(path)
    paths: list[str] = []

    class Loaded(ctypes.Structure):
        _fields_ = [("address", ctypes.c_void_p), ("path", ctypes.c_char_p)]

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Loaded), ctypes.c_size_t, ctypes.c_void_p)
    def note(loaded, size, data):  # type: ignore[no-untyped-def]
        paths.append(loaded.contents.path.decode())
        return 0

    ctypes.CDLL(None).dl_iterate_phdr(note, None)
    return [path for path in paths if path.startswith("/")]


if __name__ == "__main__":
    print(json.dumps(write_image(int(sys.argv[1]))))
