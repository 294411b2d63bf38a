package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/kv3fs/kv3fs/internal/advise/engineconfig"
)

func engineConfig(args ...string) (status int, out, errs string) {
	var o, e bytes.Buffer
	status = run(append([]string{"engine-config"}, args...), &o, &e)
	return status, o.String(), e.String()
}

// A complete configuration is printed for every engine, even if the mount does not exist
// yet.
func TestEngineConfig(t *testing.T) {
	for _, engine := range engineconfig.Names() {
		status, out, errs := engineConfig(engine, "--mount", "/nonexistent/3fs/", "--model", "meta-llama/Llama-3.1-8B-Instruct", "--tp", "2", "--shm", "64GiB")
		if status != 0 || !strings.Contains(out, "==> requirements <==") {
			t.Errorf("%s: exit %d, %s%s", engine, status, out, errs)
		}
		if engine != engineconfig.LMCacheGDS && engine != engineconfig.RTPLLM && !strings.Contains(out, "# WARNING: no 3FS is mounted at /nonexistent/3fs yet") {
			t.Errorf("%s: no warning of the mount:\n%s", engine, out)
		}
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"lmcache", "--shm", "64MiB"}, "# WARNING: even the smallest sizes take 600 MiB"},
		{[]string{"lmcache", "--form", "mp"}, "--l2-adapter '{"},
		{[]string{"lmcache"}, "remote_url: \"hf3fs:///nonexistent/3fs/lmcache\""},
		{[]string{"lmcache", "--dir", "/nonexistent/3fs/a", "--dir", "/nonexistent/3fs/b"}, "base_path: \"/nonexistent/3fs/a,/nonexistent/3fs/b\""},
		{[]string{"vllm", "--model", "DeepSeek-R1", "--tp", "8", "--dtype", "fp8"}, "/vllm/deepseek-r1-fp8-tp8"},
		{[]string{"vllm", "--model", "mine/x", "--layers", "2", "--kv-heads", "2", "--head-dim", "64"}, "vllm serve mine/x"},
		{[]string{"sglang", "--page-service", "http://other:1"}, `"metadata_server_url": "http://other:1"`},
		{[]string{"sglang", "--file-size", "1GiB"}, `"file_size": 1073741824`},
		{[]string{"rtp-llm"}, "# WARNING: rtp-llm looks for the 3FS at /3fs/stage/3fs only"},
		{[]string{"ucm", "--layers", "61", "--mla-dim", "576"}, "shared by the ranks"},
	} {
		args := append(c.args, "--mount", "/nonexistent/3fs")
		if !slices.Contains(args, "--shm") {
			args = append(args, "--shm", "64GiB")
		}
		if status, out, errs := engineConfig(args...); status != 0 || !strings.Contains(out, c.want) {
			t.Errorf("%v: exit %d, want %q in\n%s%s", c.args, status, c.want, out, errs)
		}
	}
}

// Wrong command lines and failures have different exit statuses. Both errors say how to
// fix the problem.
func TestEngineConfigErrors(t *testing.T) {
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{}, exitUsage, "engine"},
		{[]string{"vlm"}, exitUsage, "did you mean vllm?"},
		{[]string{"vllm", "--model", "Qwen3-33B"}, exitUsage, "similar names: Qwen3-32B"},
		{[]string{"vllm", "--layers", "3"}, exitUsage, "give KV heads"},
		{[]string{"vllm", "--model", "Qwen3-32B", "--tp", "3"}, exitUsage, "cannot be divided"},
		{[]string{"vllm", "--tp", "0"}, exitUsage, "--tp"},
		{[]string{"vllm", "--dtype", "int3"}, exitUsage, "--dtype"},
		{[]string{"vllm", "--shm", "lots"}, exitUsage, "is not a size"},
		{[]string{"vllm", "--force"}, exitUsage, "--out"},
		{[]string{"vllm", "--form", "url"}, exitUsage, "known: plain"},
		{[]string{"lmcache", "--dir", "/elsewhere"}, exitUsage, "not below the mount point"},
		{[]string{"vllm", "--mount", ""}, exitUsage, "must name a"},
		{[]string{"vllm", "--mount", "/"}, exitUsage, "cannot be /"},
		{[]string{"lmcache", "--file-size", "1GiB"}, exitUsage, "--file-size"},
		{[]string{"vllm", "--page-service", "http://other:1"}, exitUsage, "--page-service"},
		{[]string{"vllm", "--file-size", "4k"}, exitUsage, "too small for a page"},
	} {
		args := c.args
		if len(args) > 0 && !slices.Contains(args, "--mount") {
			args = append(args, "--mount", "/nonexistent/3fs")
		}
		if status, out, errs := engineConfig(args...); status != c.status || !strings.Contains(errs, c.want) {
			t.Errorf("%v: exit %d, want %d and %q in\n%s%s", c.args, status, c.status, c.want, out, errs)
		}
	}
}

func TestEngineConfigOut(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	args := []string{"sglang", "--mount", "/nonexistent/3fs", "--shm", "64GiB", "--out", dir}
	status, out, errs := engineConfig(args...)
	if status != 0 || !strings.Contains(out, "wrote "+filepath.Join(dir, "sglang-hf3fs.json")) || strings.Contains(out, "==> sglang-hf3fs.json") {
		t.Fatalf("exit %d\n%s%s", status, out, errs)
	}
	for _, name := range []string{"sglang-hf3fs.json", "start-sglang.sh"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || len(text) == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := os.Remove(filepath.Join(dir, "sglang-hf3fs.json")); err != nil {
		t.Fatal(err)
	}
	if status, _, errs := engineConfig(args...); status != exitFailed || !strings.Contains(errs, "start-sglang.sh exists; --force") {
		t.Errorf("overwriting: exit %d, %s", status, errs)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("files written in spite of the error: %v", left)
	}
	elsewhere := filepath.Join(t.TempDir(), "mine")
	if err := os.WriteFile(elsewhere, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(elsewhere, filepath.Join(dir, "sglang-hf3fs.json")); err != nil {
		t.Fatal(err)
	}
	if status, _, errs := engineConfig(append(args, "--force")...); status != 0 {
		t.Errorf("--force: exit %d, %s", status, errs)
	}
	if text, err := os.ReadFile(elsewhere); err != nil || string(text) != "mine" {
		t.Errorf("--force wrote through a symbolic link: %q, %v", text, err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 2 {
		t.Errorf("left behind: %v", left)
	}
}

// If the second file cannot be written, the first is not written either.
func TestEngineConfigOutWhole(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "start-sglang.sh"), 0o755); err != nil {
		t.Fatal(err)
	}
	status, _, errs := engineConfig("sglang", "--mount", "/nonexistent/3fs", "--shm", "64GiB", "--out", dir, "--force")
	if status != exitFailed || !strings.Contains(errs, "start-sglang.sh is a directory") {
		t.Errorf("exit %d, %s", status, errs)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}

func TestChooseMount(t *testing.T) {
	mounts := []string{"/mnt/3fs", "/mnt/a"}
	for _, c := range []struct {
		cmd     engineConfigCmd
		mounted []string
		want    string // mount or error
	}{
		{engineConfigCmd{Engine: "vllm"}, []string{"/mnt/3fs"}, "/mnt/3fs"},
		{engineConfigCmd{Engine: "vllm"}, nil, "kv3fs serve --data DIR --mount /mnt/3fs"},
		{engineConfigCmd{Engine: "vllm"}, mounts, "choose one with --mount"},
		{engineConfigCmd{Engine: "vllm", Mount: "/mnt/3fs"}, mounts, "/mnt/3fs"},
		{engineConfigCmd{Engine: "vllm", Mount: "/mnt/x"}, mounts, "/mnt/x"},
		{engineConfigCmd{Engine: "lmcache-gds", Dir: []givenPath{"/nvme"}}, nil, ""},
		{engineConfigCmd{Engine: "rtp-llm"}, nil, "/3fs/stage/3fs"},
		{engineConfigCmd{Engine: "rtp-llm"}, []string{"/3fs/stage/3fs", "/mnt/3fs"}, "/3fs/stage/3fs"},
		{engineConfigCmd{Engine: "rtp-llm"}, []string{"/mnt/3fs"}, "/mnt/3fs"},
	} {
		got, err := c.cmd.chooseMount(c.mounted)
		if err != nil && strings.Contains(err.Error(), c.want) {
			continue
		}
		if got != c.want || err != nil {
			t.Errorf("%+v, mounted %q: %q, %v; want %q", c.cmd, c.mounted, got, err, c.want)
		}
	}
}

// The configuration contains the mount and directories without symbolic links.
func TestEngineConfigThroughALink(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	point, link := filepath.Join(dir, "3fs"), filepath.Join(dir, "lnk")
	if err := errors.Join(os.Mkdir(point, 0o755), os.Symlink(point, link)); err != nil {
		t.Fatal(err)
	}
	for _, named := range [][2]string{{link, link}, {link, point}, {point, link}, {link + "/", link}} {
		status, out, errs := engineConfig("lmcache", "--mount", named[0], "--dir", named[1]+"/kv", "--shm", "64GiB")
		want := "base_path: \"" + point + "/kv\""
		if status != 0 || !strings.Contains(out, want) || !strings.Contains(out, "hf3fs_mount_point: \""+point+"\"") {
			t.Errorf("%v: exit %d, want %s in\n%s%s", named, status, want, out, errs)
		}
	}
}

// stuckRoot is a file system whose daemon does not answer.
type stuckRoot struct {
	fs.Inode
	end chan struct{}
}

func (r *stuckRoot) Getattr(context.Context, fs.FileHandle, *fuse.AttrOut) syscall.Errno {
	<-r.end
	return syscall.EIO
}

// The mount point of a 3FS that hangs is accepted if it is given by its own name. A name
// that must be resolved through the mount is an error.
func TestEngineConfigOfAStuckMount(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: waits for a timeout")
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	point, link := filepath.Join(dir, "3fs"), filepath.Join(dir, "lnk")
	if err := errors.Join(os.Mkdir(point, 0o755), os.Symlink(point, link)); err != nil {
		t.Fatal(err)
	}
	root := &stuckRoot{end: make(chan struct{})}
	server, err := fs.Mount(point, root, &fs.Options{MountOptions: fuse.MountOptions{Name: "hf3fs", FsName: "hf3fs.stuck", DirectMount: os.Geteuid() == 0, DisableSplice: true}})
	if err != nil {
		if os.Getenv("KV3FS_REQUIRE_MOUNTS") != "" {
			t.Fatal(err)
		}
		t.Skipf("no FUSE here: %v", err)
	}
	defer func() {
		close(root.end)
		if err := server.Unmount(); err != nil {
			t.Errorf("unmount: %v", err)
		}
	}()
	if status, out, errs := engineConfig("lmcache", "--mount", point+"/", "--dir", point+"/kv"); status != 0 || !strings.Contains(out, point+"/kv") || strings.Contains(out, "no 3FS is mounted") {
		t.Errorf("by its name: exit %d\n%s%s", status, out, errs)
	}
	if status, _, errs := engineConfig("vllm", "--mount", link); status != exitFailed || !strings.Contains(errs, link+" did not answer") {
		t.Errorf("through a link: exit %d, %s", status, errs)
	}
}

// A call that hangs at a path is abandoned, and the error names the path.
func TestBounded(t *testing.T) {
	end := make(chan struct{})
	defer close(end)
	_, err := bounded("/mnt/stuck", 10*time.Millisecond, func() (string, error) { <-end; return "", nil })
	if err == nil || !strings.Contains(err.Error(), "/mnt/stuck did not answer") {
		t.Error(err)
	}
	if got, err := bounded("/", time.Minute, func() (string, error) { return "x", nil }); got != "x" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}
