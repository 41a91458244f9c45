"""Programs that do everything but solve the problem:

`f(x)` is to return x + 1. `{outside}`: a file that must stay as it is.
"""
# ruff: noqa: E501

# defined, wrong: what follows tries to have it counted all the same
_WRONG = "def f(x):\n    return 0\n"
_FORMS = {
    "forks": ["import os\nwhile True:\n    os.fork()",
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass"],
    "starts": [
        "import subprocess\nsubprocess.run(['sh', '-c', ':(){{ :|:& }};:'])",
        "import os\nos.system('rm -rf {outside}')",
        "import os\nos.execv('/bin/true', ['true'])",
        "import os\nos.posix_spawn('/bin/true', ['true'], {{}})",
        ("import os\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        while "
        "True: pass\nos._exit(0)"),
        "import multiprocessing\nmultiprocessing.Process(target=print).start()",
        ("import threading\nwhile True:\n    threading.Thread(target=lambda: [None for _ in "
        "iter(int, 1)]).start()"),
        "import _thread\nwhile True:\n    _thread.start_new_thread(exec, ('while True: pass',))",
        "import concurrent.futures as c\nc.ThreadPoolExecutor().submit(print).result()",
        "import asyncio\nasyncio.run(asyncio.create_subprocess_shell('true'))",
        "import pty\npty.fork()",
        "import ctypes\nctypes.CDLL(None).fork()\nctypes.CDLL(None).system(b'rm -rf {outside}')",
        ("import ctypes\nctypes.CDLL(None).syscall(57)\nctypes.CDLL(None).syscall(56, 17, 0, 0, 0, "
        "0)\nctypes.CDLL(None).syscall(435, 0, 0)"),
        ("import mmap, ctypes\nm = mmap.mmap(-1, 4096, "
        "prot=7)\nm.write(b'\\x48\\x31\\xc0\\xb0\\x39\\x0f\\x05\\xeb\\xf7')\nctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()"),
        "import os, sys\nfd = os.open(sys.executable, os.O_RDONLY)\nos.execve(fd, ['x'], {{}})",
        "import os\nfd = os.memfd_create('x')\nos.write(fd, b'x')\nos.execve(fd, ['x'], {{}})",
    ],
    "never ends": [
        "while True: pass",
        "def f(x):\n    while True: pass",
        "import time\ntime.sleep(1e6)",
        "def f(x):\n    import time\n    time.sleep(1e6)",
        "import signal\nsignal.pause()",
        "9 ** 9 ** 9",
        "import re\nre.match('(a+)+$', 'a' * 60 + 'b')",
        ("def f(x):\n    try:\n        while True: pass\n    except BaseException:\n        return "
        "x + 1"),
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        ("import signal\nfor s in range(1, 65):\n    try: signal.signal(s, lambda *a: None)\n    "
        "except (OSError, ValueError): pass\nwhile True: pass"),
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass",
        "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (-1, -1))\nwhile True: pass",
        "class A:\n    def __del__(self):\n        while True: pass\nA()",
        "import sys\nsys.setrecursionlimit(10**9)\ndef f(x): return f(x)\nf(1)",
        "print('x' * 2**20)\nwhile True: print('x' * 2**20)",
        "import os\nwhile True:\n    os.write(1, b'x' * 65536); os.write(2, b'x' * 65536)",
        "def f(x):\n    return iter(int, 1)",
        "import sys\nwhile True:\n    sys.stderr.write('x' * 65536)",
        "import re\ndef f(x):\n    return bool(re.match('(a|aa)*b', 'a' * 200)) + 1",
        ("import sys\nw=sys._getframe(1).f_locals['writer']\ndef f(x):\n    M=2**61-1\n    "
        "w.write(b'{{\"value\": [\"s\", [' + b','.join(b'[\"i\", \"%x\"]' % (M*i) for i in "
        "range(1, 60000)) + b']]}}\\n'); return 0"),
        ("import sys, time\nw=sys._getframe(1).f_locals['writer']\ndef f(x):\n    while True: "
        "w.write(b'x'); time.sleep(0.01)"),
        "class X(Exception):\n    def __str__(s):\n        while True: pass\ndef f(x): raise X",
        ("class M(type):\n    @property\n    def __mro__(s):\n        while True: pass\n    def "
        "__getattribute__(s, n):\n        while True: pass\nclass X(Exception, metaclass=M): "
        "pass\ndef f(x): raise X"),
        ("import tracemalloc, "
        "sys\nsys.setswitchinterval(1e-9)\nsys.set_int_max_str_digits(0)\nint('9' * 10**7)"),
    ],
    "memory": [
        "a = bytearray(10 * 2**30)",
        "a = []\nwhile True: a.append(bytearray(2**20))",
        "a = 'x' * (10 * 2**30)",
        "import mmap\nm = mmap.mmap(-1, 10 * 2**30)",
        "import os, mmap\nfd = os.memfd_create('x')\nos.ftruncate(fd, 10 * 2**30)",
        ("from multiprocessing import shared_memory\nshared_memory.SharedMemory(create=True, "
        "size=2**33)"),
        "import ctypes\nctypes.CDLL(None).shmget(0, 2**33, 0o1777) != -1 or 1 / 0",
        "def f(x):\n    return [0] * 10**10",
        "def f(x):\n    return 'x' * 2**26",
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))\nbytearray(10 * 2**30)",
        "import os\npipes = []\nwhile True: pipes.append(os.pipe())",
        "def f(x): return 1 << (2**26)",
        ("import sys\nw=sys._getframe(1).f_locals['writer']\ndef f(x):\n    w.write(b'{{\"value\": "
        "' + b'7' * 2**23 + b'}}\\n'); return 0"),
        ("import sys\nsys.setrecursionlimit(10**6)\ndef f(x):\n    a = []\n    for _ in "
        "range(10**5): a = [a]\n    return a"),
    ],
    "files": [
        "import os\nos.remove({outside!r})",
        "open({outside!r}, 'w').write('gone')",
        "open({outside!r}, 'a').write('more')",
        "import os\nos.truncate({outside!r}, 0)",
        "import os\nos.chmod({outside!r}, 0)",
        "import os\nos.chown({outside!r}, 12345, 12345)",
        "import os\nos.utime({outside!r}, (0, 0))",
        "import os\nos.rename({outside!r}, 'mine')",
        "import os\nos.link({outside!r}, 'mine')\nopen('mine', 'w').write('gone')",
        "import os\nos.symlink({outside!r}, 'mine')\nopen('mine', 'w').write('gone')",
        "import shutil, pathlib\nshutil.rmtree(pathlib.Path({outside!r}).parent)",
        "import shutil\nshutil.rmtree('/', ignore_errors=True)\n1 / 0",
        ("import os\nfor name in ('/tmp/h', '/var/tmp/h', '/dev/shm/h', '../h'):\n    open(name, "
        "'w')"),
        "data = open({outside!r}).read()\ndef f(x): raise ValueError(data)",
        "import os\nfor i in range(10**6): open(f'{{i}}', 'w').write('x' * 1000)",
        "with open('big', 'wb') as file:\n    for _ in range(10**4): file.write(bytes(2**20))",
        "import os\nwhile True:\n    os.mkdir('d'); os.chdir('d')",
        "import os\nos.symlink('.', 'loop')\nos.mkdir('no', 0)\nos.mkfifo('pipe')",
        ("import os\nos.mknod('disk', 0o60666, os.makedev(8, 0))\nopen('disk', "
        "'wb').write(bytes(512))"),
        "import os\nos.setxattr({outside!r}, 'user.x', b'y')",
        "import ctypes\nctypes.CDLL(None).mount(b'none', b'/', b'tmpfs', 0, None) != -1 or 1 / 0",
        "import os\nos.chroot('.')",
        "import sys\nopen('/proc/self/mem', 'r+b')",
        ("import sys, os\nfor d in sys.path + ['.']:\n    try: open(os.path.join(d, "
        "'sitecustomize.py'), 'w').write('import builtins; builtins.AssertionError = int')\n    "
        "except OSError: pass\n") + _WRONG,
        ("import site, os\nfor d in site.getsitepackages():\n    try: open(d + '/x.pth', "
        "'w').write('import os; os._exit(0)')\n    except OSError: pass\n") + _WRONG,
        ("import bass.evaluation.sandbox.values as v, os\ntry: os.remove(v.__cached__)\nexcept Exception: "
        "pass\ntry: open(v.__cached__, 'wb').write(b'')\nexcept Exception: pass\n") + _WRONG,
        ("import os\nos.symlink('/etc', 'e')\nos.symlink('/tmp', 't')\nopen('t/h', "
        "'w').write('x')\nopen('e/passwd').read()"),
        ("import os\nfor p in ('/dev/shm', '/tmp', '/var/tmp', '/run'):\n    try:\n        with "
        "open(p + '/h', 'wb') as o:\n            while True: o.write(bytes(2**20))\n    except "
        "OSError: pass\n") + _WRONG,
        ("import os\ni = 0\nwhile True:\n    with open(str(i), 'wb') as o: o.write(bytes(2**20 - "
        "1))\n    i += 1"),
        ("import os\nfor p in os.listdir('/proc'):\n    if p.isdigit(): raise "
        "ValueError(open(f'/proc/{{p}}/environ').read())"),
        "raise ValueError(open('/proc/self/environ').read())",
        ("import os\nfor fd in range(64):\n    try: os.pwrite(fd, b'x', 0)\n    except OSError: "
        "pass\nfd = os.open('/proc/self/mem', os.O_RDWR)"),
    ],
    "others": [
        "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)",
        "import os, signal\nos.killpg(0, signal.SIGKILL)",
        "import os, signal\nos.kill(-1, signal.SIGKILL)",
        "import os, signal\nos.kill(os.getppid(), signal.SIGSTOP)",
        "import os, signal\nos.kill(os.getppid(), signal.SIGALRM)",
        "import os\nos.setsid()",
        ("import os, fcntl\nr, w = os.pipe()\nfcntl.fcntl(r, 10, 9)\nfcntl.fcntl(r, "
        "fcntl.F_SETOWN, os.getppid())"),
        "import os, resource\nresource.prlimit(os.getppid(), resource.RLIMIT_CPU, (0, 0))",
        "import os\nos.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(99))",
        "import os\nopen(f'/proc/{{os.getppid()}}/mem', 'rb').read(1)",
        "import ctypes, os\nctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) != -1 or 1 / 0",
        "import socket\nsocket.create_connection(('127.0.0.1', 80), 1)",
        "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
        "import socket\nsocket.socket(socket.AF_UNIX)",
        "import urllib.request\nurllib.request.urlopen('http://127.0.0.1')",
        ("import ctypes\nctypes.CDLL(None).prctl(1, 0, 0, 0, 0) != -1 or 1 / "
        "0\nctypes.CDLL(None).prctl(38, 0) != -1 or 1 / 0"),
        "import ctypes\nctypes.CDLL(None).unshare(0x10000000) != -1 or 1 / 0",
        "import os\nos.setuid(12345)",
        ("import ctypes, os\nlibc = ctypes.CDLL(None)\nfor p in (0, -1, os.getppid(), "
        "-os.getpgrp()): libc.kill(p, 9)\n") + _WRONG,
        ("import mmap, ctypes\nm = mmap.mmap(-1, 4096, "
        "prot=7)\nm.write(b'\\xb8\\x02\\x00\\x00\\x00\\xcd\\x80\\xc3')\nctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()\n") + _WRONG,
        ("import os, fcntl\nfor fd in range(3, 64):\n    try:\n        fcntl.fcntl(fd, "
        "fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC | os.O_DIRECT)\n    except OSError: pass\n") + _WRONG,
        "import signal\nsignal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)\n" + _WRONG,
    ],
    "exits": [
        "import sys\nsys.exit(0)",
        "import os\nos._exit(0)",
        "raise SystemExit",
        "quit()",
        "import os\nos.abort()",
        "def f(x):\n    import sys\n    sys.exit(0)",
        "def f(x):\n    import os\n    os._exit(0)",
        "def f(x):\n    raise SystemExit(0)",
        "def f(x):\n    raise KeyboardInterrupt",
        "raise GeneratorExit",
        "import ctypes\nctypes.string_at(0)",
        "import atexit, os\natexit.register(os._exit, 0)\nraise SystemExit(0)",
        "import sys\nsys.stdout.close()\nsys.exit(0)",
        "import ctypes\nctypes.CDLL(None).syscall(231, 0)",
        "import atexit, os, sys\natexit.register(lambda: os._exit(0))\natexit._run_exitfuncs()",
        ("import weakref, os\nclass A: pass\na = A()\nweakref.finalize(a, os._exit, 0)\ndef "
        "f(x):\n    global a\n    del a\n    return x"),
        "class E:\n    def __del__(s): raise SystemExit(0)\ndef f(x):\n    E(); return 0",
        ("n = 0\ndef f(x):\n    global n\n    n += 1\n    if n == 2:\n        import os; "
        "os._exit(0)\n    return x + 1"),
        ("import faulthandler\nfaulthandler.dump_traceback_later(0.01, "
        "exit=True)\nfaulthandler._sigsegv()"),
    ],
    "cheats": [
        ("class E:\n    __eq__ = lambda a, b: True\n    __ne__ = lambda a, b: False\n    __hash__ "
        "= None\ndef f(x): return E()"),
        ("class I(int):\n    __eq__ = lambda a, b: True\n    __hash__ = int.__hash__\ndef f(x): "
        "return I(0)"),
        ("import builtins\nbuiltins.AssertionError = type('A', (Exception,), "
        "{{}})\nbuiltins.compile = lambda *a: 'pass'\n") + _WRONG,
        "import json\njson.dumps = lambda *a, **k: '{{\"value\": 2}}'\n" + _WRONG.replace("0",
            "json.nothing"),
        ("import os\nfor fd in range(64):\n    try: os.write(fd, b'{{\"reason\": \"passed\", "
        "\"nonce\": \"\"}}\\n')\n    except OSError: pass\n")
        + _WRONG,
        ("import os\nfor fd in range(64):\n    try: os.write(fd, b'{{\"value\": {{\"f\": "
        "2}}}}\\n' * 9)\n    except OSError: pass\n") + _WRONG,
        ("import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'[' * 2**20 + b'\\n')\n    "
        "except OSError: pass\n") + _WRONG,
        ("import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'x' * 2**26)\n    except "
        "OSError: pass\n") + _WRONG,
        "import os\nos.closerange(0, 64)",
        ("import sys\nframe = sys._getframe()\nwhile frame:\n    "
        "frame.f_globals.update(passed=True, reason='passed'); frame = frame.f_back\n")
        + _WRONG,
        ("import gc\nfor o in gc.get_objects():\n    if isinstance(o, dict) and 'reason' in o: "
        "o['reason'] = 'passed'\n") + _WRONG,
        ("import sys\nsys.settrace(lambda *a: None)\nsys.modules['bass.evaluation.sandbox.checker'] "
        "= None\n") + _WRONG,
        "import unittest, sys\nsys.argv = ['x']\n__name__ = '__main__'\ncheck = lambda *a: None\n" + _WRONG,
        "def f(x):\n    a = []\n    a.append(a)\n    return a",
        "def f(x):\n    return float('nan')",
        "f = None",
        "",
        "def f(x:\n",
        "\x00",
        "raise Exception(type('E', (), {{'__str__': lambda s: 1 / 0}})())",
        "class X(Exception):\n    __str__ = None\ndef f(x): raise X",
        "def f(x):\n    return {{(): [], frozenset(): set()}}",
        ("class E:\n    def __eq__(s, o): raise SystemExit(0)\n    def __req__(s, o): raise "
        "SystemExit(0)\ndef f(x): return E()"),
        ("class S(str):\n    __eq__ = lambda a, b: True\n    __hash__ = str.__hash__\n    __str__ "
        "= lambda s: s\ndef f(x): return S('')"),
        ("class F(float):\n    hex = lambda s: '0x1p+1'\n    __eq__ = lambda a, b: True\n    "
        "__hash__ = float.__hash__\ndef f(x): return F(0)"),
        "class L(list):\n    __eq__ = lambda a, b: True\n    __hash__ = None\ndef f(x): return L()",
        ("class M(type):\n    __eq__ = lambda a, b: True\n    __hash__ = type.__hash__\nclass "
        "C(metaclass=M): pass\nC.__name__ = 'int'\ndef f(x): return C"),
        ("import sys\nfr = sys._getframe(1)\nfr.f_globals['encode'] = lambda v, h: ['o', "
        "0]\nfr.f_locals['question'] = {{}}\n") + _WRONG,
        "import sys\nsys._getframe(1).f_globals['encode'] = lambda v, h: ['T', '__loader__']\n" + _WRONG,
        "f = SystemExit",
        "f = type",
        "f = StopIteration",
        "def f(x): raise AssertionError('passed')",
        ("import sys\nw=sys._getframe(1).f_locals['writer']\nw.write(b'{{\"value\": 2}}\\n' * "
        "1000)\n") + _WRONG,
        ("import os, sys\nfr = sys._getframe(1)\nw = fr.f_locals['writer']\ndef f(x):\n    "
        "w.write(b'{{\"value\": ' + b'[\"l\", [' * 300 + b']]' * 300 + b'}}\\n'); return 0"),
        ('import sys\nw=sys._getframe(1).f_locals[\'writer\']\ndef f(x):\n    '
        'w.write(b\'{{"value": ["D", "1E999999999"]}}\\n\'); return 0'),
        ("from fractions import Fraction\nimport "
        "sys\nfr=sys._getframe(1)\nw=fr.f_locals['writer']\ndef f(x):\n    w.write(b'{{\"value\": "
        "[\"F\", [[\"i\", \"0x' + b'7' * 2**23 + b'\"], [\"i\", \"0x' + b'3' * (2**23 - 1) + "
        "b'\"]]]}}\\n'); return 0"),
        ('import sys\nw=sys._getframe(1).f_locals[\'writer\']\ndef f(x):\n    '
        'w.write(b\'{{"raised": ["ExceptionGroup"], "text": ""}}\\n\'); return 0'),
        ('import sys\nw=sys._getframe(1).f_locals[\'writer\']\ndef f(x):\n    '
        'w.write(b\'{{"raised": ["SystemExit", "KeyboardInterrupt", "BaseExceptionGroup"], '
        '"text": {{}}}}\\n\'); return 0'),
        ("import sys\nsys.excepthook = sys.unraisablehook = lambda *a: None\nsys.exit = lambda *a: "
        "None\nraise Exception"),
        ("import sys\nsys.meta_path.insert(0, type('H', (), {{'find_spec': lambda *a: 1 / "
        "0}})())\nsys.path_hooks.clear()\nsys.modules.clear()\n") + _WRONG,
        "import gc\ngc.callbacks.append(lambda *a: 1 / 0)\ngc.freeze()\ngc.collect()\n" + _WRONG,
        "import sys\nsys.addaudithook(lambda *a: 1 / 0)\n" + _WRONG,
    ],
}  # fmt: skip
PROGRAMS = {f"{kind} {i}": text for kind, texts in _FORMS.items() for i, text in enumerate(texts)}
