package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/advise/doctor"
	"github.com/kv3fs/kv3fs/usrbio"
)

// healthy is what the broken set-ups of a test are made from.
type healthy struct {
	*served
	bin string
	dir string // for files, with rights for every user
}

func (h healthy) file(t *testing.T, name, text string) string {
	t.Helper()
	dir, err := os.MkdirTemp(h.dir, "") // cases run together
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func (h healthy) doctor(args ...string) *exec.Cmd {
	return exec.Command(h.bin, append([]string{"doctor", "--json", "--no-bandwidth"}, args...)...)
}

// engine returns a doctor for an engine's configuration.
func (h healthy) engine(t *testing.T, engine, config string, args ...string) *exec.Cmd {
	t.Helper()
	return h.doctor(append([]string{"--engine", engine, "--engine-config", h.file(t, engine+".conf", config)}, args...)...)
}

func (h healthy) sglang(t *testing.T, change func(config map[string]any), args ...string) *exec.Cmd {
	t.Helper()
	config := map[string]any{"file_path_prefix": h.mount + "/hicache", "file_size": 1 << 40, "numjobs": 16, "entries": 8, "metadata_server_url": "http://localhost:18000", "client_timeout": 10}
	change(config)
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	return h.engine(t, "sglang", string(text), append([]string{"--mount", h.mount}, args...)...)
}

// broken is a set-up that does not work, or not well, and what the doctor must say about it.
type broken struct {
	name string
	// start breaks something, until the test ends, and returns the doctor that looks at it.
	start func(t *testing.T, h healthy) *exec.Cmd
	root  bool // only root can break it
	alone bool // the answer depends on the other mounts

	id     string // of the finding; "": none must be worse than a note for the engine's own configuration
	status doctor.Status
	says   string // in what was found, is needed or helps
	fix    string // how the fix begins; MOUNT stands for the mount, DATA for its directory
	never  string // what no finding may say
}

func brokenSetUps() []broken {
	return []broken{
		{
			name:  "few open files",
			start: func(t *testing.T, h healthy) *exec.Cmd { return limited(h, "256") },
			id:    "limit.nofile", status: doctor.Warning, says: "256 open files", fix: "ulimit -n ",
		},
		{
			name: "few open files for an engine that may raise them",
			start: func(t *testing.T, h healthy) *exec.Cmd {
				return limited(h, "256", "--engine", "vllm")
			},
			id: "limit.nofile", status: doctor.Warning, says: "a process of vllm", fix: "ulimit -n ",
		},
		{
			name: "UCM's Posix store, without the 3FS library",
			start: func(t *testing.T, h healthy) *exec.Cmd {
				return h.engine(t, "ucm", "ucm_connectors:\n  - ucm_connector_name: UcmPipelineStore\n    ucm_connector_config: {store_pipeline: Cache|Posix, storage_backends: "+h.mount+"}\n", "--mount", h.mount)
			},
			id: "config.path", status: doctor.OK, never: "libhf3fs",
		},
		{
			name: "Mooncake's posix adapter, without the 3FS library",
			start: func(t *testing.T, h healthy) *exec.Cmd {
				return h.engine(t, "mooncake", "MOONCAKE_ENABLE_DFS=true\nMOONCAKE_DFS_FS_ADAPTER=posix\nMOONCAKE_DFS_SHARD_CAPACITY=4096\nMOONCAKE_DFS_ROOT_DIR="+h.mount+"\n", "--mount", h.mount)
			},
			id: "config.path", status: doctor.OK, never: "libhf3fs",
		},
		{
			name: "SGLang does not wait for the daemon's deadline",
			start: func(t *testing.T, h healthy) *exec.Cmd {
				return h.sglang(t, func(c map[string]any) { c["client_timeout"] = 3 })
			},
			id: "config", status: doctor.Warning, says: "client_timeout: is 3 s", fix: "write 10",
		},
		{
			name: "SGLang with MLA and no metadata server",
			start: func(t *testing.T, h healthy) *exec.Cmd {
				return h.sglang(t, func(c map[string]any) { delete(c, "metadata_server_url") }, "--model", "deepseek-ai/DeepSeek-R1", "--tp", "8")
			},
			id: "config", status: doctor.Failure, says: "does not start with an MLA model", fix: "write the URL of a page service",
		},
		{
			name: "eight ranks that share a file of 1 TiB",
			start: func(t *testing.T, h healthy) *exec.Cmd {
				return h.sglang(t, func(map[string]any) {}, "--model", "deepseek-ai/DeepSeek-R1", "--tp", "8")
			},
			id: "data.space", status: doctor.Warning, says: "1.0 TiB free for the files of sglang with 8 ranks", never: "8.0 TiB",
		},
		{
			name: "UCM collects garbage, but only above a capacity that is missing",
			start: func(t *testing.T, h healthy) *exec.Cmd {
				return h.engine(t, "ucm", "ucm_connectors:\n  - ucm_connector_name: UcmPipelineStore\n    ucm_connector_config: {store_pipeline: Cache|Posix, posix_gc_enable: true, storage_backends: "+h.mount+"}\n", "--mount", h.mount)
			},
			id: "config", status: doctor.Warning, says: "the disk fills", fix: "write how many GB",
		},
		{
			name: "a daemon that only reads",
			start: func(t *testing.T, h healthy) *exec.Cmd {
				return h.doctor("--mount", serve(t, h.bin, t.TempDir(), "--readonly").mount)
			},
			id: "ring", status: doctor.Warning, says: "read-only file system", fix: "kill ",
		},
		{
			name: "a daemon that only reads, and an engine",
			start: func(t *testing.T, h healthy) *exec.Cmd {
				s := serve(t, h.bin, t.TempDir(), "--readonly")
				return h.doctor("--mount", s.mount, "--engine", "vllm")
			},
			id: "ring", status: doctor.Failure, says: "store nothing", fix: "kill ",
		},
		{
			name: "an immutable data directory", root: true,
			start: func(t *testing.T, h healthy) *exec.Cmd {
				s := serve(t, h.bin, t.TempDir())
				seal(t, s.data)
				return h.doctor("--mount", s.mount)
			},
			id: "data.lock", status: doctor.Failure, says: "not even root", fix: "chattr -i /",
		},
		{
			name: "an immutable data directory that the doctor does not see", root: true,
			start: func(t *testing.T, h healthy) *exec.Cmd {
				s := serve(t, h.bin, t.TempDir())
				seal(t, s.data)
				return h.doctor("--mount", s.mount, "--data", t.TempDir())
			},
			id: "ring", status: doctor.Failure, says: "lsattr -d",
		},
		{
			name: "a user who may not write", root: true,
			start: func(t *testing.T, h healthy) *exec.Cmd {
				cmd := h.doctor("--mount", h.mount)
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
				return cmd
			},
			id: "ring", status: doctor.Warning, says: "permission denied", fix: "install -d -o 65534 MOUNT/",
		},
		{
			name: "another file system's directory", alone: true,
			start: func(t *testing.T, h healthy) *exec.Cmd { return h.doctor("--mount", "/usr") },
			id:    "mount", status: doctor.Failure, says: "MOUNT", fix: "kv3fs doctor --mount /", never: "serve --data /var/lib/kv3fs --mount /usr",
		},
		{
			name: "RTP-LLM, whose path is built in", alone: true,
			start: func(t *testing.T, h healthy) *exec.Cmd {
				return h.engine(t, "rtp-llm", "REUSE_CACHE=1\nENABLE_3FS=1\nBIZ_NAME=b\nCHECKPOINT_PATH=/m\n")
			},
			id: "mount", status: doctor.Failure, says: "no 3FS is mounted at /3fs/stage/3fs", fix: "mkdir -p /3fs/stage/3fs && mount --bind /", never: "and name that one",
		},
		{
			name: "RTP-LLM, with a 3FS elsewhere",
			start: func(t *testing.T, h healthy) *exec.Cmd {
				return h.engine(t, "rtp-llm", "REUSE_CACHE=1\nENABLE_3FS=1\nBIZ_NAME=b\nCHECKPOINT_PATH=/m\n", "--mount", h.mount)
			},
			id: "config.path", status: doctor.Failure, fix: "mkdir -p /3fs/stage/3fs && mount --bind MOUNT /3fs/stage/3fs", never: "and name that one",
		},
		{
			name: "UCM's Ds3fs with another mount point",
			start: func(t *testing.T, h healthy) *exec.Cmd {
				return h.engine(t, "ucm", "ucm_connectors:\n  - ucm_connector_name: UcmPipelineStore\n    ucm_connector_config: {store_pipeline: Cache|Ds3fs, storage_backends: "+h.dir+"}\n", "--mount", h.mount)
			},
			id: "config.path", status: doctor.Failure, fix: "write MOUNT as the mount point", never: "and name that one",
		},
		{
			name: "SGLang with a URL that names no host",
			start: func(t *testing.T, h healthy) *exec.Cmd {
				return h.sglang(t, func(c map[string]any) { c["metadata_server_url"] = "http://" })
			},
			id: "config", status: doctor.Failure, says: "not a URL with a host", fix: "write http://HOST:18000", never: "--listen ''",
		},
		{
			name: "LMCache's connector fs on the mount",
			start: func(t *testing.T, h healthy) *exec.Cmd {
				return h.engine(t, "lmcache", "remote_url: fs://host:0"+h.mount+"/kv\n", "--mount", h.mount)
			},
			id: "config.path", status: doctor.OK, says: "will be created", never: "hf3fs_mount_point",
		},
		{
			name: "LMCache by its environment, with a misspelt variable",
			start: func(t *testing.T, h healthy) *exec.Cmd {
				cmd := h.doctor("--mount", h.mount, "--engine", "lmcache")
				cmd.Env = append(os.Environ(), "LMCACHE_REMOTE_URL=hf3fs://"+h.mount+"/kv", "LMCACHE_CHUNKSIZE=512", `LMCACHE_EXTRA_CONFIG={"hf3fs_mount_point": "`+h.mount+`"}`)
				return cmd
			},
			id: "config.env", status: doctor.Warning, says: "LMCACHE_CHUNKSIZE: is not a variable that LMCache reads, so it does nothing", fix: "write LMCACHE_CHUNK_SIZE",
		},
		{
			name: "LMCache with an empty file",
			start: func(t *testing.T, h healthy) *exec.Cmd {
				return h.engine(t, "lmcache", "# to do\n", "--mount", h.mount)
			},
			id: "config", status: doctor.Failure, says: "lmcache.conf: is empty: it sets nothing", fix: "kv3fs engine-config lmcache", never: "LMCACHE_",
		},
		{
			name: "a full disk", root: true,
			start: func(t *testing.T, h healthy) *exec.Cmd {
				dir := t.TempDir()
				if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
				if err := os.WriteFile(filepath.Join(dir, "kv.data"), make([]byte, 2<<20), 0o644); err == nil {
					t.Error("the disk is larger than it should be")
				}
				return h.doctor("--mount", h.mount, "--data", dir)
			},
			id: "data.space", status: doctor.Failure, says: "ENOSPC", fix: "du -xh /", never: "DATA",
		},
		{
			name: "a dead mount elsewhere", alone: true,
			start: func(t *testing.T, h healthy) *exec.Cmd {
				s := serve(t, h.bin, t.TempDir())
				s.cmd.Process.Kill()
				s.cmd.Wait()
				return h.doctor("--mount", h.mount)
			},
			id: "mount.other", status: doctor.Note, says: "is dead",
		},
	}
}

// limited returns a doctor that was started with a soft limit of open files.
func limited(h healthy, files string, args ...string) *exec.Cmd {
	doctor := h.doctor(append([]string{"--mount", h.mount}, args...)...)
	return exec.Command("sh", append([]string{"-c", `ulimit -Sn ` + files + `; exec "$0" "$@"`}, doctor.Args...)...)
}

// seal makes a directory immutable until the test ends.
func seal(t *testing.T, dir string) {
	t.Helper()
	if out, err := exec.Command("chattr", "+i", dir).CombinedOutput(); err != nil {
		t.Skipf("no immutable directories here: %v: %s", err, bytes.TrimSpace(out))
	}
	t.Cleanup(func() {
		if out, err := exec.Command("chattr", "-i", dir).CombinedOutput(); err != nil {
			t.Errorf("chattr -i: %v: %s", err, out)
		}
	})
}

// The doctor finds what is wrong with set-ups that are really broken, and its cures fit them:
// they name the paths of this host and contradict nothing else that it says.
func TestBrokenSetUps(t *testing.T) {
	requireFUSE(t)
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { // for a doctor that is not root
		t.Fatal(err)
	}
	bin := binary(t)
	s := serve(t, bin, t.TempDir())
	mount, err := filepath.EvalSymlinks(s.mount)
	if err != nil {
		t.Fatal(err)
	}
	h := healthy{served: s, bin: bin, dir: dir}
	for _, c := range brokenSetUps() {
		t.Run(c.name, func(t *testing.T) {
			if c.root && os.Geteuid() != 0 {
				t.Skip("not root")
			}
			if !c.alone {
				t.Parallel() // begins when those that are alone have ended
			}
			r, status := reportOf(t, c.start(t, h))
			said := func(text string) string {
				return strings.NewReplacer("MOUNT", mount, "DATA", s.data).Replace(text)
			}
			if f, found := theFinding(r, c.id, c.status, said(c.says)); !found {
				t.Errorf("no %v of %s with %q: %+v", c.status, c.id, said(c.says), r.Findings)
			} else if !strings.HasPrefix(f.Fix, said(c.fix)) || (c.status >= doctor.Warning) != (status > 0) && c.status >= doctor.Warning {
				t.Errorf("%v, status %d, fix %q; want it to begin with %q", f.Status, status, f.Fix, said(c.fix))
			}
			for _, f := range r.Findings {
				for _, text := range []string{c.never, "--listen ''", "DATA", "--data DIR"} {
					if text != "" && strings.Contains(f.ID+" "+f.Found+" "+f.Needed+" "+f.Fix, text) {
						t.Errorf("%q in %+v", text, f)
					}
				}
			}
		})
	}
}

// Cures that are whole command lines do their work when they are pasted into a shell.
func TestPastedCures(t *testing.T) {
	requireFUSE(t)
	bin := binary(t)
	t.Run("a daemon that only reads", func(t *testing.T) {
		t.Parallel()
		s := serve(t, bin, t.TempDir(), "--readonly")
		h := healthy{served: s, bin: bin, dir: t.TempDir()}
		r, _ := reportOf(t, h.doctor("--mount", s.mount))
		paste(t, s, finding(t, r, "ring").Fix)
		r, _ = reportOf(t, h.doctor("--mount", s.mount))
		if f := finding(t, r, "ring"); f.Status != doctor.OK {
			t.Errorf("%+v", f)
		}
	})
	t.Run("a user who may not write", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("not root")
		}
		t.Parallel()
		s := serve(t, bin, t.TempDir())
		dir := t.TempDir()
		if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
			t.Fatal(err)
		}
		h := healthy{served: s, bin: bin, dir: dir}
		for _, path := range []string{filepath.Join(s.mount, "there"), filepath.Join(s.mount, "missing")} {
			if filepath.Base(path) == "there" {
				if err := os.Mkdir(path, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			config := h.file(t, "lmcache.yaml", "remote_url: fs://host:0"+path+"\n")
			look := func() doctor.Finding {
				cmd := h.doctor("--mount", s.mount, "--engine", "lmcache", "--engine-config", config)
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
				r, _ := reportOf(t, cmd)
				return finding(t, r, "config.path")
			}
			if out, err := exec.Command("sh", "-c", look().Fix).CombinedOutput(); err != nil {
				t.Errorf("%s: %v: %s", path, err, out)
			}
			if f := look(); f.Status != doctor.OK {
				t.Errorf("%+v", f)
			}
		}
	})
}

// paste gives a shell the line that starts a daemon again, and waits until it serves. The
// daemon ends with the test.
func paste(t *testing.T, s *served, line string) {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- s.cmd.Wait() }() // as a shell does: tail waits until the process is gone
	cmd := exec.Command("sh", "-c", line)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
		cmd.Wait()
		for range 200 { // the daemon's parent, the shell, ends first
			if syscall.Kill(-cmd.Process.Pid, 0) != nil {
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
	})
	if err := <-ended; err != nil {
		t.Errorf("the daemon that only read: %v", err)
	}
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if m, err := usrbio.Open(t.Context(), s.mount); err == nil {
			m.Close(t.Context())
			return
		}
	}
	t.Fatalf("%s: no mount", line)
}

// theFinding returns the finding with this ID and status that says a text.
func theFinding(r doctor.Report, id string, status doctor.Status, says string) (doctor.Finding, bool) {
	for _, f := range r.Findings {
		if f.ID == id && f.Status == status && strings.Contains(f.Found+" "+f.Needed+" "+f.Fix, says) {
			return f, true
		}
	}
	return doctor.Finding{}, false
}
