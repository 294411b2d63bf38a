package doctor

import (
	"errors"
	"maps"
	"math"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/advise/engineconfig"
	"github.com/kv3fs/kv3fs/internal/gpudirect"
	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/internal/wire"
)

func byID(t *testing.T, all []Finding, id string) Finding {
	t.Helper()
	for _, f := range all {
		if f.ID == id {
			return f
		}
	}
	t.Errorf("no %s among %+v", id, all)
	return Finding{}
}

func TestKernel(t *testing.T) {
	for _, c := range []struct {
		release             string
		euid                int
		kernel, passthrough Status
	}{
		{"6.18.1", 0, OK, OK}, {"6.9.0", 1000, OK, Note}, {"6.8.12", 0, OK, Note}, {"5.6.0", 0, OK, Note},
	} {
		h := fixture(t, map[string]string{"/proc/sys/kernel/osrelease": c.release})
		h.EUID = c.euid
		all := append(checkKernel(h), checkPassthrough(h, nil, "")...)
		want(t, c.release, byID(t, all, "kernel"), "kernel", c.kernel)
		want(t, c.release, byID(t, all, "fuse.passthrough"), "fuse.passthrough", c.passthrough)
	}
	want(t, "too old", checkKernel(fixture(t, map[string]string{"/proc/sys/kernel/osrelease": "5.5.19"}))[0], "kernel", Failure)
	want(t, "no kernel", checkKernel(fixture(t, nil))[0], "kernel", Note)
}

// What the daemon says about itself counts more than what its host could do.
func TestPassthroughOfTheDaemon(t *testing.T) {
	h := fixture(t, map[string]string{"/proc/sys/kernel/osrelease": "6.18.1"})
	for _, c := range []struct {
		says, engine string
		status       Status
		found        string
	}{
		{wire.PassthroughOn, "", OK, "on:"},
		{"", "", OK, "available"}, // an older daemon
		{"the daemon is not root: run it as root", engineconfig.VLLM, Note, "not root"},
		{"it is switched off", engineconfig.LMCacheGDS, Warning, "switched off"},
	} {
		f := checkPassthrough(h, &wire.Daemon{Passthrough: c.says}, c.engine)[0]
		want(t, c.says, f, "fuse.passthrough", c.status)
		if !strings.Contains(f.Found, c.found) || c.status != OK && !strings.Contains(f.Needed, "ENODEV") {
			t.Errorf("%q: %+v", c.says, f)
		}
	}
}

func TestFuse(t *testing.T) {
	none := func(string) (string, error) { return "", exec.ErrNotFound }
	there := func(name string) (string, error) { return "/bin/" + name, nil }
	good := fixture(t, map[string]string{"/dev/fuse": "", "/etc/fuse.conf": "user_allow_other\n", "/etc/passwd": "root:x:0:0::/root:/bin/sh\nengine:x:1000:1000::/:/bin/sh\n"})
	for _, f := range checkFuse(good, none, false) {
		want(t, "root", f, f.ID, OK)
	}
	good.EUID = 1000
	for _, f := range checkFuse(good, there, false) {
		want(t, "a user", f, f.ID, OK)
	}
	bare := fixture(t, nil)
	bare.EUID = 1000
	for mounted, worst := range map[bool]Status{false: Failure, true: Note} {
		all := checkFuse(bare, none, mounted)
		want(t, "no device", byID(t, all, "fuse.device"), "fuse.device", worst)
		want(t, "no helper", byID(t, all, "fuse.helper"), "fuse.helper", worst)
		want(t, "no entry in /etc/passwd", byID(t, all, "fuse.user"), "fuse.user", min(worst, Warning))
		want(t, "no fuse.conf", byID(t, all, "fuse.allow_other"), "fuse.allow_other", Note)
	}
	container := fixture(t, map[string]string{"/.dockerenv": ""})
	if f := checkFuse(container, none, false)[0]; !strings.Contains(f.Fix, "--device /dev/fuse") {
		t.Errorf("in a container: %+v", f)
	}
}

func TestShm(t *testing.T) {
	for _, c := range []struct {
		what             string
		size, free, need int64
		memory           string
		status           Status
		fix              string
	}{
		{"plenty", 64 << 30, 64 << 30, 8 << 30, "99999999", OK, ""},
		{"no engine", 1 << 30, 1 << 30, 0, "", OK, ""},
		{"a container's 64 MB", 64 << 20, 64 << 20, 0, "", Warning, "size=1G"},
		{"RTP-LLM on two ranks", 8 << 30, 8 << 30, 16 << 30, "", Failure, "size=18G"},
		{"full", 64 << 30, 1 << 30, 2 << 30, "", Warning, "size=66G"},
		{"almost", 64 << 30, 2<<30 - 1<<20, 2 << 30, "", Warning, "size=65G"},
		{"absurd", 64 << 30, 64 << 30, math.MaxInt64, "", Failure, "size=8589934592G"},
		{"no limit", 0, 0, 8 << 30, "99999999", OK, ""},
		{"more than memory", 64 << 30, 64 << 30, 8 << 30, "1024", Warning, ""},
	} {
		h := fixture(t, map[string]string{"/proc/meminfo": "MemAvailable: " + c.memory + " kB\n"})
		h.Statfs = sizes(c.size, c.free)
		f := checkShm(h, c.need, "x")
		want(t, c.what, f, "shm.size", c.status)
		if !strings.Contains(f.Fix, c.fix) || c.fix == "" && f.Fix != "" {
			t.Errorf("%s: fix %q, want %q", c.what, f.Fix, c.fix)
		}
		if c.what == "almost" && !strings.Contains(f.Needed, "2,147,483,648 bytes") {
			t.Errorf("%s: the numbers look equal: %+v", c.what, f)
		}
	}
	h := fixture(t, map[string]string{"/run/.containerenv": ""})
	h.Statfs = sizes(64<<20, 64<<20)
	if f := checkShm(h, 16<<30, "x"); !strings.Contains(f.Fix, "--shm-size=18g") || !strings.Contains(f.Fix, "Kubernetes") {
		t.Errorf("in a container: %+v", f)
	}
	h.Statfs = func(string, *unix.Statfs_t) error { return syscall.ENOENT }
	want(t, "none", checkShm(h, 0, ""), "shm.size", Failure)
}

// What a container has in /dev/shm counts against its memory limit, in both versions of control
// groups.
func TestShmMemory(t *testing.T) {
	v2 := func(limit string) map[string]string {
		return map[string]string{"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/memory.max": limit, "/proc/meminfo": "MemTotal: 268435456 kB\n"}
	}
	v1 := func(limit string) map[string]string {
		return map[string]string{"/proc/self/cgroup": "5:memory:/kubepods/pod1\n0::/x\n", "/sys/fs/cgroup/memory/memory.limit_in_bytes": limit, "/proc/meminfo": "MemTotal: 268435456 kB\n"}
	}
	for _, c := range []struct {
		what   string
		files  map[string]string
		need   int64
		status Status
		says   string
	}{
		{"less than four ranks need", v2("17179869184"), 32 << 30, Failure, "more than 32 GiB"},
		{"less than four ranks need, version 1", v1("17179869184"), 32 << 30, Failure, "more than 32 GiB"},
		{"less than /dev/shm", v2("17179869184"), 8 << 30, Warning, "at least 24 GiB, the size of /dev/shm"},
		{"enough", v2("68719476736"), 8 << 30, OK, ""},
		{"enough, version 1", v1("68719476736"), 8 << 30, OK, ""},
		{"not known", map[string]string{"/proc/self/cgroup": "0::/\n"}, 8 << 30, Note, ""},
	} {
		all := checkShmMemory(fixture(t, c.files), c.need, "x")
		if len(all) != 1 {
			t.Errorf("%s: %+v", c.what, all)
			continue
		}
		want(t, c.what, all[0], "shm.memory", c.status)
		if !strings.Contains(all[0].Needed, c.says) || (c.status >= Warning) != strings.Contains(all[0].Fix, "memory: ") {
			t.Errorf("%s: %+v", c.what, all[0])
		}
	}
	for what, files := range map[string]map[string]string{"no limit": v2("max"), "no limit, version 1": v1("9223372036854771712")} {
		if all := checkShmMemory(fixture(t, files), 8<<30, "x"); len(all) > 0 {
			t.Errorf("%s: %+v", what, all)
		}
	}
}

func TestLimits(t *testing.T) {
	for _, c := range []struct {
		soft, hard, need int64
		status           Status
	}{
		{1 << 20, 1 << 20, 40000, OK}, {256, 1 << 20, 0, Warning}, {1024, 1 << 20, 0, OK}, {256, 1024, 0, Failure},
		{1024, 1 << 20, 512, OK}, {1023, 1 << 20, 512, Warning}, {1024, 4096, 40000, Failure},
		{1 << 20, 1 << 30, 512, Note}, {1 << 20, host.Unlimited, 512, Note},
	} {
		want(t, limitText(c.hard), judgeOpenFiles(host.Limit{Soft: c.soft, Hard: c.hard}, c.need, "x"), "limit.nofile", c.status)
	}
	want(t, "memlock", judgeLocked(host.Limit{Soft: 64 << 10, Hard: 64 << 10}), "limit.memlock", Note)
	want(t, "memlock", judgeLocked(host.Limit{Soft: host.Unlimited}), "limit.memlock", OK)
	want(t, "no /proc", checkLimits(t.Context(), on(fixture(t, nil)), engineconfig.Need{})[0], "limits", Note)
}

func TestDaemonLimits(t *testing.T) {
	files := func(open, maps string) map[string]string {
		return map[string]string{
			"/proc/77/cmdline":           "/usr/bin/kv3fs\x00serve\x00",
			"/proc/77/limits":            "Max open files            " + open + " " + open + " files\n",
			"/proc/sys/vm/max_map_count": maps + "\n",
		}
	}
	for _, c := range []struct {
		what          string
		files         map[string]string
		registrations int64
		status        Status
	}{
		{"plenty", files("1048576", "65530"), 512, OK},
		{"no engine", files("20000", "65530"), 0, OK},
		{"few descriptors", files("1024", "65530"), 256, Warning},
		{"too few", files("1024", "65530"), 768, Failure},
		{"few mappings", files("1048576", "1000"), 768, Failure},
		{"unlimited", files("unlimited", "65530"), 0, OK},
		{"elsewhere", nil, 0, Note},
		{"another process with that id", map[string]string{"/proc/77/cmdline": "bash\x00"}, 0, Note},
		{"unreadable", map[string]string{"/proc/77/cmdline": "kv3fs\x00serve\x00"}, 0, Note},
	} {
		f := checkDaemonLimits(fixture(t, c.files), &wire.Daemon{PID: 77}, c.registrations, "x")[0]
		want(t, c.what, f, "daemon.limits", c.status)
		if c.what == "few mappings" && !strings.Contains(f.Fix, "vm.max_map_count") {
			t.Errorf("%s: %+v", c.what, f)
		}
	}
}

func TestData(t *testing.T) {
	for kind, status := range map[string]Status{
		"ext4": OK, "xfs": OK, "tmpfs": Note, "overlay": Warning, "nfs4": Note, "fuse.juicefs": Note, "fuse.hf3fs": Failure,
	} {
		want(t, kind, judgeFileSystem("/d", host.Mount{Type: kind, Point: "/", Options: "rw"}), "data", status)
	}
	want(t, "read-only", judgeFileSystem("/d", host.Mount{Type: "ext4", Point: "/", Options: "ro"}), "data", Failure)
	for options, status := range map[string]Status{"rw": OK, "rw,relatime": Note, "rw,noatime": Note} {
		want(t, options, judgeAtime(host.Mount{Options: options}), "data.atime", status)
	}
	for free, status := range map[int64]Status{50: OK, 5: OK, 4: Warning, 0: Failure} {
		want(t, "space", judgeSpace(dataFacts{SizeBytes: 100, FreeBytes: free}, &engine{}, ""), "data.space", status)
		want(t, "inodes", judgeInodes(dataFacts{Inodes: 100, FreeNodes: uint64(free)}), "data.inodes", status)
	}
}

// The maximum size of an engine's files is compared with the free space, and the fix never
// deletes files that may hold another engine's data.
func TestSpaceForEngine(t *testing.T) {
	facts := dataFacts{SizeBytes: 100 << 30, FreeBytes: 50 << 30}
	read := &engineconfig.Config{}
	for _, c := range []struct {
		what   string
		bytes  int64
		e      engine // its Need.DiskBytes is bytes
		sparse bool
		status Status
		want   string
	}{
		{"little", 20 << 30, engine{ranks: 2}, false, OK, ""},
		{"much once it is full", 30 << 30, engine{ranks: 2}, false, Warning, "60 GiB free for the files of x once they are full"},
		{"absurd", math.MaxInt64, engine{ranks: 8}, false, Warning, ""},
		{"reserved", 40 << 30, engine{ranks: 8, need: engineconfig.Need{DiskReserved: true}, config: read}, false, OK, ""},
		{"too much reserved", 60 << 30, engine{need: engineconfig.Need{DiskReserved: true}, config: read}, false, Failure, "60 GiB free for the files of x, which it reserves"},
		{"there already", 60 << 30, engine{need: engineconfig.Need{DiskReserved: true}, config: read, held: 60 << 30}, false, OK, ""},
		{"there in part", 80 << 30, engine{need: engineconfig.Need{DiskReserved: true}, config: read, held: 20 << 30}, false, Failure, "60 GiB free"},
		{"sparse", 60 << 30, engine{need: engineconfig.Need{DiskReserved: true}, config: read}, true, Warning, "they are sparse"},
		{"sizes not known", 60 << 30, engine{need: engineconfig.Need{DiskReserved: true}}, false, Warning, "less what they hold"},
	} {
		facts.Sparse, c.e.need.DiskBytes, c.e.title = c.sparse, c.bytes, "x"
		f := judgeSpace(facts, &c.e, "x")
		want(t, c.what, f, "data.space", c.status)
		if !strings.Contains(f.Needed, c.want) {
			t.Errorf("%s: %q, want %q in it", c.what, f.Needed, c.want)
		}
	}
	facts.FreeBytes = 1
	for _, name := range append(engineconfig.Names(), "") {
		f := judgeSpace(facts, &engine{}, name)
		if deletes := strings.Contains(f.Fix, "-delete"); deletes != (name == engineconfig.LMCache) || deletes && !strings.Contains(f.Fix, "! -name 'dfs_shard_*'") {
			t.Errorf("%s: %s", name, f.Fix)
		}
	}
}

func TestDiskJudgement(t *testing.T) {
	for _, c := range []struct {
		what   string
		facts  diskFacts
		status Status
	}{
		{"fast", diskFacts{Direct: true, Read: 3e9, Write: 2e9}, OK},
		{"slow", diskFacts{Read: 3e9, Write: 90e6}, Note},
		{"not allowed", diskFacts{Err: probeError{syscall.EACCES, "no"}}, Note},
		{"full", diskFacts{Err: probeError{syscall.ENOSPC, "full"}}, Note},
		{"broken", diskFacts{Err: probeError{syscall.EIO, "input/output error"}}, Failure},
	} {
		want(t, c.what, judgeDisk(c.facts), "data.bandwidth", c.status)
	}
}

func TestMountJudgement(t *testing.T) {
	daemon := &wire.Daemon{Version: "v1", PID: 5}
	for _, c := range []struct {
		what   string
		facts  mountFacts
		status Status
		usable bool
	}{
		{"kv3fs", mountFacts{Magic: true, Daemon: daemon}, OK, true},
		{"another 3FS", mountFacts{Magic: true}, OK, true},
		{"no ioctl", mountFacts{}, Failure, false},
		{"no 3fs-virt", mountFacts{Iovs: probeError{syscall.ENOENT, "no such file"}}, Failure, false},
	} {
		all, usable := judgeMount("/m", c.facts, nil)
		want(t, c.what, all[0], "mount", c.status)
		if usable != c.usable {
			t.Errorf("%s: usable %v", c.what, usable)
		}
		if usable {
			want(t, c.what, byID(t, all, "daemon"), "daemon", map[bool]Status{true: OK, false: Note}[c.facts.Daemon != nil])
		}
	}
	all, _ := judgeMount("/m", mountFacts{Magic: true, Daemon: &wire.Daemon{Version: "v1", PID: 1, Unseen: true}}, nil)
	want(t, "a daemon in its own PID namespace", byID(t, all, "daemon.pids"), "daemon.pids", Warning)
	for _, c := range []struct {
		look probeError
		euid int
		fix  string
	}{
		{probeError{syscall.ENOTCONN, "not connected"}, 0, "umount -l '/a b'"},
		{probeError{syscall.ENOTCONN, "not connected"}, 1000, "fusermount3 -uz '/a b'"},
		{probeError{syscall.EACCES, "permission denied"}, 1000, allowOthers},
		{probeError{syscall.EIO, "input/output error"}, 0, ""},
	} {
		o := local()
		o.Host.Root, o.Host.EUID = t.TempDir(), c.euid
		f := judgeUnresponsive(t.Context(), "mount", o, "/a b", nil, c.look)
		want(t, c.look.Text, f, "mount", Failure)
		if !strings.Contains(f.Fix, c.fix) {
			t.Errorf("%s: fix %q, want %q", c.look.Text, f.Fix, c.fix)
		}
	}
}

// A daemon that took over a dead mount and died itself has left two.
func TestTwoDeadMounts(t *testing.T) {
	at := host.Mount{Point: "/m", Type: host.HF3FSType}
	f := judgeUnresponsive(t.Context(), "mount", local(), "/m", []host.Mount{at, {Point: "/", Type: "ext4"}, at}, probeError{syscall.ENOTCONN, "not connected"})
	if strings.Count(f.Fix, "/m") != 2 {
		t.Errorf("fix %q", f.Fix)
	}
}

func TestRingJudgement(t *testing.T) {
	for _, c := range []struct {
		facts  ringFacts
		status Status
		engine string
		euid   int
	}{
		{facts: ringFacts{Elapsed: time.Millisecond}, status: OK},
		{ringFacts{CreateErr: probeError{syscall.EACCES, "permission denied"}}, Warning, "", 1000},
		{ringFacts{CreateErr: probeError{syscall.EPERM, "not permitted"}}, Failure, "", 0},
		{ringFacts{CreateErr: probeError{syscall.EROFS, "read-only"}}, Warning, "", 0},
		{ringFacts{CreateErr: probeError{syscall.EROFS, "read-only"}}, Failure, "vllm", 1000},
		{facts: ringFacts{CreateErr: probeError{syscall.ENOSPC, "no space"}}, status: Failure},
		{facts: ringFacts{MissingSemaphore: "/dev/shm/sem.x"}, status: Failure},
		{facts: ringFacts{TransferErr: probeError{syscall.ENOSPC, "no space"}}, status: Failure},
		{facts: ringFacts{TransferErr: probeError{syscall.ETIMEDOUT, "timed out"}}, status: Failure},
		{facts: ringFacts{TransferErr: probeError{0, "other bytes"}}, status: Failure},
	} {
		want(t, c.facts.TransferErr.Text+c.facts.CreateErr.Text, judgeRing(c.facts, "/m", c.engine, c.euid), "ring", c.status)
	}
}

func TestHashSeed(t *testing.T) {
	seed := func(s string) *string { return &s }
	vllm := func(value *string, readable bool) process {
		return process{PID: 9, Args: []string{"/usr/bin/python3", "/usr/bin/vllm", "serve"}, HashSeed: value, Readable: readable}
	}
	for _, c := range []struct {
		what    string
		env     map[string]string
		running []process
		status  Status
	}{
		{"nothing", nil, nil, Warning},
		{"here", map[string]string{hashSeed: "0"}, nil, OK},
		{"random", map[string]string{hashSeed: "random"}, nil, Warning},
		{"in the engine", nil, []process{vllm(seed("7"), true)}, OK},
		{"here, not in the engine", map[string]string{hashSeed: "0"}, []process{vllm(nil, true)}, Warning},
		{"two", nil, []process{vllm(seed("7"), true), vllm(seed("8"), true)}, Warning},
		{"hidden", nil, []process{vllm(nil, false)}, Note},
		{"a daemon is no engine", map[string]string{hashSeed: "0"}, []process{{Args: []string{"kv3fs", "serve"}, Readable: true}}, OK},
	} {
		h := fixture(t, nil)
		h.LookupEnv = environment(c.env)
		want(t, c.what, judgeHashSeed(h, c.running), "env.PYTHONHASHSEED", c.status)
	}
}

func TestProcessesAreRecognised(t *testing.T) {
	for line, engine := range map[string]string{
		"python3 -m vllm.entrypoints.openai.api_server": "vllm", "/opt/bin/vllm serve model": "vllm", "python3.12 -m sglang.launch_server": "sglang",
		"lmcache_server 0.0.0.0": "lmcache", "vi vllm.yaml": "", "kv3fs doctor --engine vllm": "", "kv3fs serve": "", "python3 -c pass": "",
	} {
		if got := engineOf(strings.Fields(line)); got != engine {
			t.Errorf("%s is %q, want %q", line, got, engine)
		}
	}
	for line, daemon := range map[string]bool{"kv3fs serve --data /d": true, "/usr/bin/kv3fs --config f serve": true, "kv3fs doctor": false, "kv3fs pages serve --data /d": false, "kv3fs": false, "vllm serve": false} {
		if serves(strings.Fields(line)) != daemon {
			t.Errorf("%s: daemon %v", line, !daemon)
		}
	}
}

func TestPackages(t *testing.T) {
	p := engineconfig.Package{Name: "x", Install: "pip install x"}
	want(t, "there", judgePackage(p, "1.0 /usr/lib/x", nil), "package.x", OK)
	want(t, "not there", judgePackage(p, "", exec.ErrNotFound), "package.x", Failure)
	want(t, "hangs", judgePackage(p, "", errNoAnswer), "package.x", Note)
	p.Optional = "slower"
	want(t, "not there, not needed", judgePackage(p, "", exec.ErrNotFound), "package.x", Warning)

	const cache = "2 libs found in cache `/etc/ld.so.cache'\n\tlibcufile.so.0 (libc6,x86-64) => /usr/local/cuda/lib64/libcufile.so.0\n\tlibz.so.1 (libc6,x86-64) => /lib/libz.so.1\n"
	for name, path := range map[string]string{"libcufile.so": "/usr/local/cuda/lib64/libcufile.so.0", "libz.so.1": "/lib/libz.so.1", "libcu.so": "", "libz": ""} {
		if got := cacheEntry(cache, name); path != "" && got != path || path == "" && name == "libcu.so" && got != "" {
			t.Errorf("%s is at %q, want %q", name, got, path)
		}
	}
}

func TestFindModule(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("no python3")
	}
	if where, err := find(t.Context(), local(), commandTimeout, "module", "json"); err != nil || !strings.Contains(where, "json") {
		t.Errorf("json: %q, %v", where, err)
	}
	if where, err := find(t.Context(), local(), commandTimeout, "module", "kv3fs_no_such_module.io"); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("no such module: %q, %v", where, err)
	}
	dir := t.TempDir()
	t.Setenv("PYTHONPATH", dir)
	if err := writeFile(dir+"/kv3fs_broken.py", "raise RuntimeError('no library')\n"); err != nil {
		t.Fatal(err)
	}
	_, err := find(t.Context(), local(), commandTimeout, "module", "kv3fs_broken")
	f := judgePackage(engineconfig.Package{Name: "kv3fs_broken", Install: "x"}, "", err)
	if want(t, "broken", f, "package.kv3fs_broken", Failure); !strings.Contains(f.Found, "no library") {
		t.Errorf("broken: %+v", f)
	}
}

// What gdscheck -p would show, on a host with a GPU that suits GPUDirect Storage and on others.
func TestGDS(t *testing.T) {
	good := map[string]string{
		"/proc/modules": "nvidia_fs 1 0 - Live\n", "/proc/driver/nvidia-fs/version": "version: 2.26.6\n", "/etc/cufile.json": "{\"properties\": {\"allow_compat_mode\": true}} // default",
		"/proc/driver/nvidia/version":                       "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\nGCC version: 12\n",
		"/proc/driver/nvidia/gpus/0000:1b:00.0/information": "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 1\n",
		"/sys/bus/pci/devices/0000:1b:00.0/resource":        "0x000000009e000000 0x000000009effffff 0x0000000000040200\n0x0000018000000000 0x0000019fffffffff 0x000000000014220c\n0x0 0x0 0x0\n",
		"/proc/sys/kernel/osrelease":                        "6.8.0\n",
	}
	all := checkGDS(t.Context(), on(fixture(t, good)), &engine{})
	for _, f := range all {
		want(t, "good", f, f.ID, OK)
	}
	if f := byID(t, all, "gds.gpu"); !strings.Contains(f.Found, "NVIDIA H100 80GB HBM3") || !strings.Contains(f.Found, "BAR1 128 GiB") {
		t.Errorf("%+v", f)
	}
	for _, c := range []struct {
		what, file, text string
		id               string
		status           Status
		says             string
	}{
		{"no driver", "/proc/modules", "", "gds.driver", Warning, "use_pci_p2pdma"},
		{"the proprietary modules", "/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.1\n", "gds.nvidia", Warning, "open kernel modules"},
		{"half a file", "/etc/cufile.json", "// x\n{\"properties\": {\"force_compat_mode\": true /*", "gds.config", Warning, "JSON"},
		{"forced compatibility", "/etc/cufile.json", "// x\n{\"properties\": {\"force_compat_mode\": true}}", "gds.config", Warning, "always copies"},
		{"a comment in a string", "/etc/cufile.json", "{\"logging\": {\"dir\": \"http://x\\\"//\"}}", "gds.config", OK, "compatibility mode on"},
		{"a small window", "/sys/bus/pci/devices/0000:1b:00.0/resource", "0x9e000000 0x9effffff 0x200\n0x0000018000000000 0x000001800fffffff 0xc\n", "gds.gpu", Warning, "BAR1 256 MiB"},
		{"an unknown window", "/sys/bus/pci/devices/0000:1b:00.0/resource", "nonsense", "gds.gpu", Note, "not known"},
		{"an IOMMU", "/sys/class/iommu/dmar0", "", "gds.iommu", Note, "iommu=pt"},
	} {
		files := maps.Clone(good)
		files[c.file] = c.text
		f := byID(t, checkGDS(t.Context(), on(fixture(t, files)), &engine{}), c.id)
		if want(t, c.what, f, c.id, c.status); !strings.Contains(f.Found+f.Needed+f.Fix, c.says) {
			t.Errorf("%s: %+v", c.what, f)
		}
	}
	f, _ := judgeGDSConfig("/etc/cufile.json", []byte(`{"properties": {"allow_compat_mode": false}}`), false)
	if want(t, "no way at all", f, "gds.config", Failure); !strings.Contains(f.Found, "5030") {
		t.Errorf("%+v", f)
	}
	bare := checkGDS(t.Context(), on(fixture(t, nil)), &engine{})
	want(t, "no NVIDIA driver", byID(t, bare, "gds.nvidia"), "gds.nvidia", Warning)
	want(t, "no driver", byID(t, bare, "gds.driver"), "gds.driver", Warning)
	want(t, "no configuration", byID(t, bare, "gds.config"), "gds.config", Note)
}

// PCI P2PDMA needs a kernel, a driver and a configuration that are set up for it.
func TestGDSP2P(t *testing.T) {
	const both = `{"properties": {"use_pci_p2pdma": true}, "block": {"nvme": {"use_pci_p2pdma": true}}}`
	acs := make([]byte, 4096)
	copy(acs[0x100:], "\x0d\x00\x01\x00\x00\x00\x1c\x00")
	good := map[string]string{
		"/etc/cufile.json": both, "/sys/module/nvme_core/parameters/multipath": "N\n",
		"/proc/driver/nvidia/params":                        "ResmanDebugLevel: 4294967295\nRegistryDwords: \"RMForceStaticBar1=1;RmForceDisableIomapWC=1;\"\nRmMsg: \"\"\n",
		"/proc/driver/nvidia/gpus/0000:1b:00.0/information": "Model: NVIDIA H100\n",
		"/sys/bus/pci/devices/0000:00:01.0/class":           "0x060400\n", "/sys/bus/pci/devices/0000:00:01.0/config": strings.Repeat("\x00", 4096),
	}
	ids := []string{"gds.p2pdma", "gds.acs"}
	if runtime.GOARCH == "amd64" {
		ids = append(ids, "gds.multipath", "gds.registry")
	}
	all := checkGDS(t.Context(), on(fixture(t, good)), &engine{})
	for _, id := range ids {
		want(t, "good", byID(t, all, id), id, OK)
	}
	for _, c := range []struct {
		what, file, text string
		id               string
		status           Status
		fix              string
	}{
		{"one place", "/etc/cufile.json", `{"properties": {"use_pci_p2pdma": true}}`, "gds.p2pdma", Warning, `write "block": {"nvme": {"use_pci_p2pdma": true}} at the top level of /etc/cufile.json`},
		{"off in one place", "/etc/cufile.json", `{"properties": {"use_pci_p2pdma": true}, "block": {"nvme": {"use_pci_p2pdma": false}}}`, "gds.p2pdma", Warning, "at the top level"},
		{"below fs, as NVIDIA's file of older releases", "/etc/cufile.json", `{"properties": {"use_pci_p2pdma": true}, "fs": {"block": {"nvme": {"use_pci_p2pdma": true}}}}`, "gds.p2pdma", Warning, "at the top level"},
		{"the other place", "/etc/cufile.json", `{"block": {"nvme": {"use_pci_p2pdma": true}}}`, "gds.p2pdma", Warning, `below "properties" in /etc/cufile.json`},
		{"multipath", "/sys/module/nvme_core/parameters/multipath", "Y\n", "gds.multipath", Warning, "echo options nvme_core multipath=N >> /etc/modprobe.d/nvme.conf && "},
		{"no registry", "/proc/driver/nvidia/params", "RegistryDwords: \"\"\n", "gds.registry", Warning, `echo 'options nvidia NVreg_RegistryDwords="RMForceStaticBar1=1;RmForceDisableIomapWC=1;"' > /etc/modprobe.d/nvidia-p2pdma.conf && `},
		{"half a registry", "/proc/driver/nvidia/params", "RegistryDwords: \"RMPcieP2PType=1;RMForceStaticBar1=2;RmForceDisableIomapWC=0\"\n", "gds.registry", Warning, `"RMPcieP2PType=1;RMForceStaticBar1=2;RmForceDisableIomapWC=1;"`},
		{"another case", "/proc/driver/nvidia/params", "RegistryDwords: \"RMPcieP2PType=1;rmforcestaticbar1=0;RmForceDisableIomapWC=1\"\n", "gds.registry", Warning, `"RMPcieP2PType=1;RmForceDisableIomapWC=1;RMForceStaticBar1=1;"`},
		{"ACS", "/sys/bus/pci/devices/0000:00:01.0/config", string(acs), "gds.acs", Warning, "for b in 0000:00:01.0; do setpci -s $b ECAP_ACS+6.w=0; done"},
		{"ACS, not root", "/sys/bus/pci/devices/0000:00:01.0/config", strings.Repeat("\x00", 64), "gds.acs", Note, "sudo kv3fs doctor"},
	} {
		if !slices.Contains(ids, c.id) {
			continue
		}
		files := maps.Clone(good)
		files[c.file] = c.text
		f := byID(t, checkGDS(t.Context(), on(fixture(t, files)), &engine{}), c.id)
		if want(t, c.what, f, c.id, c.status); !strings.Contains(f.Fix, c.fix) {
			t.Errorf("%s: %+v", c.what, f)
		}
	}
	// Who does not ask for it is not told about it.
	files := maps.Clone(good)
	files["/etc/cufile.json"], files["/sys/module/nvme_core/parameters/multipath"] = "{}", "Y\n"
	for _, f := range checkGDS(t.Context(), on(fixture(t, files)), &engine{}) {
		if f.ID == "gds.p2pdma" || f.ID == "gds.multipath" || f.ID == "gds.registry" {
			t.Errorf("%+v", f)
		}
	}
}

// Cures are whole command lines: the daemon's own, changed.
func TestCommandLines(t *testing.T) {
	serve := []string{"/opt/kv3fs", "serve", "--data", "/a b", "--mount", "/m"}
	for _, c := range []struct {
		args []string
		want string
	}{
		{writable(append(slices.Clone(serve), "--readonly")), "/opt/kv3fs serve --data '/a b' --mount /m"},
		{writable(append(slices.Clone(serve), "--readonly=true", "--workers", "2")), "/opt/kv3fs serve --data '/a b' --mount /m --workers 2"},
		{writable(slices.Clone(serve)), "/opt/kv3fs serve --data '/a b' --mount /m --readonly=false"},
		{forOthers(slices.Clone(serve)), "/opt/kv3fs serve --data '/a b' --mount /m --allow-other"},
		{forOthers(append(slices.Clone(serve), "--allow-other=false")), "/opt/kv3fs serve --data '/a b' --mount /m --allow-other"},
		{withOption([]string{"vllm", "serve", "m", "--gpu-memory-utilization", "0.9"}, "--gpu-memory-utilization", "0.8"), "vllm serve m --gpu-memory-utilization 0.8"},
		{withOption([]string{"vllm", "serve", "--gpu-memory-utilization=0.9", "m"}, "--gpu-memory-utilization", "0.8"), "vllm serve --gpu-memory-utilization=0.8 m"},
		{withOption([]string{"vllm", "serve", "m"}, "--gpu-memory-utilization", "0.8"), "vllm serve m --gpu-memory-utilization 0.8"},
	} {
		if got := commandLine(c.args); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
	}
	mounts := []host.Mount{{Point: "/mnt/3fs", Device: "0:50", Root: "/"}, {Point: "/part of it", Device: "0:50", Root: "/a"}}
	if got := bindVirtual("/part of it", mounts); got != "mkdir -p '/part of it/3fs-virt' && mount --bind /mnt/3fs/3fs-virt '/part of it/3fs-virt'" {
		t.Error(got)
	}
	if got := bindVirtual("/kv", mounts[:1]); !strings.HasPrefix(got, "write -v MOUNT/3fs-virt:/kv/3fs-virt") {
		t.Error(got)
	}
	for _, x := range []struct {
		f    pathFacts
		euid int
		want string
	}{
		{pathFacts{Path: "/m/a", Parent: "/m/a", Canonical: "/m/a"}, 1000, "chown 1000 /m/a   # as root"},
		{pathFacts{Path: "/m/a/b", Parent: "/m", Canonical: "/m"}, 1000, "install -d -o 1000 /m/a/b   # as root"},
		{pathFacts{Path: "/m/a", Parent: "/m/a", Canonical: "/m/a"}, 0, ""},
	} {
		x.f.Write = probeError{syscall.EACCES, "no"}
		if f := judgePath(x.f, &engineconfig.Config{MakesPaths: true}, "/m", x.euid); f.Fix != x.want || f.Status != Failure {
			t.Errorf("%+v", f)
		}
	}
}

// Where LMCache stores: it turns GPUDirect Storage off by itself on tmpfs alone.
func TestGDSPath(t *testing.T) {
	for _, c := range []struct {
		v      gpudirect.Verdict
		asked  bool
		status Status
		says   string
	}{
		{gpudirect.Verdict{Way: gpudirect.Direct, Type: "xfs"}, true, OK, ""},
		{gpudirect.Verdict{Way: gpudirect.Copied, Type: "fuse.hf3fs", Cure: "x"}, false, Warning, "copies through main memory"},
		{gpudirect.Verdict{Way: gpudirect.Refused, Type: "tmpfs", Cure: "x"}, false, Warning, "by itself"},
		{gpudirect.Verdict{Way: gpudirect.Refused, Type: "tmpfs", Cure: "x"}, true, Failure, "5030"},
		{gpudirect.Verdict{Way: gpudirect.Refused, Type: "overlay", Cure: "x"}, false, Failure, "5030"},
	} {
		f := judgeGDSPath("/kv", c.v, c.asked)
		if want(t, c.v.Type, f, "gds.path", c.status); !strings.Contains(f.Needed, c.says) || f.Fix != c.v.Cure {
			t.Errorf("%+v: %+v", c, f)
		}
	}
	dir := t.TempDir()
	o := on(fixture(t, map[string]string{"/proc/self/mountinfo": "22 1 0:5 / / rw - tmpfs tmpfs rw\n"}))
	o.Engine, o.ConfigFile = engineconfig.LMCacheGDS, dir+"/lmcache.yaml"
	if err := writeFile(o.ConfigFile, "gds_path: "+dir+"/kv\ngds_buffer_size: 64\nuse_gds: true\n"); err != nil {
		t.Fatal(err)
	}
	e := checkEngine(t.Context(), o)
	want(t, "a directory on tmpfs", byID(t, checkGDSPaths(t.Context(), o, e), "gds.path"), "gds.path", Failure)
}

// The buffer and vLLM's share fit into each GPU's memory, as LMCache's page reckons: 8 GiB with
// 0.85 on 80 GiB.
func TestGPUMemory(t *testing.T) {
	h100 := gpuMemory{"NVIDIA H100", 80 << 30}
	for _, c := range []struct {
		gpu    gpuMemory
		buffer int64
		share  float64
		status Status
		fix    string
	}{
		{h100, 8 << 30, 0.85, OK, ""},
		{h100, 8 << 30, 0.89, Warning, "--gpu-memory-utilization 0.88 "},
		{h100, 8 << 30, 0.92, Failure, "--gpu-memory-utilization 0.88 "},
		{gpuMemory{"RTX", 10 << 30}, 8 << 30, 0.92, Failure, "write gds_buffer_size: 0"},
	} {
		f, best := judgeGPUMemory(c.gpu, c.buffer, c.share, "x")
		if best > 0 {
			f.Fix = engineLine(t.Context(), local(), best)
		}
		if want(t, c.gpu.name, f, "gds.memory", c.status); !strings.Contains(f.Fix, c.fix) {
			t.Errorf("%+v: %+v", c, f)
		}
	}
	if got := parseGPUs("NVIDIA H100 80GB HBM3, 81559\nNVIDIA GB10, [N/A]\nx\nA, B, 100\n"); len(got) != 2 || got[0].totalBytes != 81559<<20 || got[1].name != "A, B" {
		t.Errorf("%+v", got)
	}
	// With the nvidia-smi of a host that has a smaller GPU, and without any.
	e := &engine{need: engineconfig.Need{GPUBufferBytes: 8 << 30}, config: &engineconfig.Config{GPUMemoryUtilization: 0.85}}
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/nvidia-smi", []byte("#!/bin/sh\necho NVIDIA H100, 81559\necho NVIDIA L4, 23034\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	f := checkGPUMemory(t.Context(), local(), e)[0]
	if want(t, "the smallest", f, "gds.memory", Failure); !strings.Contains(f.Found, "NVIDIA L4 has 22 GiB; vLLM's 85 % (as given)") {
		t.Errorf("%+v", f)
	}
	t.Setenv("PATH", t.TempDir())
	want(t, "no nvidia-smi", checkGPUMemory(t.Context(), local(), e)[0], "gds.memory", Note)
	if all := checkGPUMemory(t.Context(), local(), &engine{}); len(all) > 0 {
		t.Errorf("no buffer: %+v", all)
	}
}

func TestPathJudgement(t *testing.T) {
	c := &engineconfig.Config{Engine: "x", Need: engineconfig.Need{Rings3FS: true}}
	makes := &engineconfig.Config{Engine: "x", MakesPaths: true, Need: engineconfig.Need{Rings3FS: true}}
	there := pathFacts{Path: "/m/a", Parent: "/m/a", Canonical: "/m/a"}
	missing := pathFacts{Path: "/m/a/b", Parent: "/m/a", Canonical: "/m/a"}
	for _, x := range []struct {
		what   string
		facts  pathFacts
		config *engineconfig.Config
		status Status
	}{
		{"there", there, c, OK}, {"missing", missing, c, Failure}, {"will be made", missing, makes, OK},
		{"elsewhere", pathFacts{Path: "/x", Parent: "/x", Canonical: "/x"}, c, Failure},
		{"a link that leads elsewhere", pathFacts{Path: "/m/l", Parent: "/m/l", Canonical: "/x"}, c, Failure},
		{"a similar name", pathFacts{Path: "/m2", Parent: "/m2", Canonical: "/m2"}, c, Failure},
		{"elsewhere, any file system", pathFacts{Path: "/x", Parent: "/x", Canonical: "/x"}, &engineconfig.Config{}, OK},
		{"a file", pathFacts{Path: "/m/a", Parent: "/m/a", Canonical: "/m/a", Write: probeError{syscall.ENOTDIR, "no"}}, c, Failure},
		{"not writable", pathFacts{Path: "/m/a", Parent: "/m/a", Canonical: "/m/a", Write: probeError{syscall.EACCES, "no"}}, c, Failure},
		{"full", pathFacts{Path: "/m/a", Parent: "/m/a", Canonical: "/m/a", Write: probeError{syscall.ENOSPC, "no"}}, c, Failure},
	} {
		want(t, x.what, judgePath(x.facts, x.config, "/m", 1000), "config.path", x.status)
	}
}

func writeFile(path, text string) error { return os.WriteFile(path, []byte(text), 0o644) }
