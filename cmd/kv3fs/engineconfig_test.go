package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/engines"
)

func engineConfig(args ...string) (status int, out, errs string) {
	var o, e bytes.Buffer
	status = run(append([]string{"engine-config"}, args...), &o, &e)
	return status, o.String(), e.String()
}

// Every engine's configuration is printed whole, for a mount that is not there yet.
func TestEngineConfig(t *testing.T) {
	for _, engine := range engines.Names() {
		status, out, errs := engineConfig(engine, "--mount", "/nonexistent/3fs/", "--model", "meta-llama/Llama-3.1-8B-Instruct", "--tp", "2", "--shm", "64GiB")
		if status != 0 || !strings.Contains(out, "==> what must be there <==") {
			t.Errorf("%s: exit %d, %s%s", engine, status, out, errs)
		}
		if engine != engines.LMCacheGDS && !strings.Contains(out, "# WARNING: no 3FS is mounted at /nonexistent/3fs yet") {
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

// What was asked wrongly is told apart from what does not work, each with a cure.
func TestEngineConfigErrors(t *testing.T) {
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{}, exitUsage, "engine"},
		{[]string{"vlm"}, exitUsage, "did you mean vllm?"},
		{[]string{"vllm", "--model", "Qwen3-33B"}, exitUsage, "near it: Qwen3-32B"},
		{[]string{"vllm", "--layers", "3"}, exitUsage, "give KV heads"},
		{[]string{"vllm", "--model", "Qwen3-32B", "--tp", "3"}, exitUsage, "cannot be divided"},
		{[]string{"vllm", "--tp", "0"}, exitUsage, "--tp"},
		{[]string{"vllm", "--dtype", "int3"}, exitUsage, "--dtype"},
		{[]string{"vllm", "--shm", "lots"}, exitUsage, "is no size"},
		{[]string{"vllm", "--force"}, exitUsage, "--out"},
		{[]string{"vllm", "--form", "url"}, exitFailed, "known: plain"},
		{[]string{"lmcache", "--dir", "/elsewhere"}, exitFailed, "not below the mount point"},
		{[]string{"vllm", "--file-size", "4k"}, exitFailed, "holds no page"},
	} {
		args := c.args
		if len(args) > 0 {
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
		t.Errorf("refused, yet it wrote: %v", left)
	}
	if status, _, errs := engineConfig(append(args, "--force")...); status != 0 {
		t.Errorf("--force: exit %d, %s", status, errs)
	}
}

func TestChooseMount(t *testing.T) {
	const info = `30 1 8:1 / / rw - ext4 /dev/sda1 rw
31 30 0:40 / /mnt/3fs rw,nosuid shared:1 - fuse.hf3fs hf3fs.kv3fs rw
32 30 0:41 / /mnt/a\040b rw - fuse.hf3fs hf3fs.other rw
33 30 0:42 / /mnt/sshfs rw - fuse.sshfs x rw
34 30 0:43 / /mnt/3fs rw - fuse.hf3fs hf3fs.kv3fs rw
not a line
`
	mounts := hf3fsMounts(info)
	if !slices.Equal(mounts, []string{"/mnt/3fs", "/mnt/a b"}) {
		t.Fatalf("mounts %q", mounts)
	}
	for _, c := range []struct {
		cmd     engineConfigCmd
		mounted []string
		want    string // mount, remark or error
	}{
		{engineConfigCmd{Engine: "vllm"}, []string{"/mnt/3fs"}, "/mnt/3fs"},
		{engineConfigCmd{Engine: "vllm"}, nil, "kv3fs serve --data DIR --mount /mnt/3fs"},
		{engineConfigCmd{Engine: "vllm"}, mounts, "choose one with --mount"},
		{engineConfigCmd{Engine: "vllm", Mount: "/mnt/3fs"}, mounts, "/mnt/3fs"},
		{engineConfigCmd{Engine: "vllm", Mount: "/mnt/x"}, mounts, "/mnt/x no 3FS is mounted at /mnt/x yet"},
		{engineConfigCmd{Engine: "lmcache-gds", Dir: []string{"/nvme"}}, nil, ""},
		{engineConfigCmd{Engine: "rtp-llm"}, nil, "/3fs/stage/3fs no 3FS is mounted"},
		{engineConfigCmd{Engine: "rtp-llm"}, []string{"/3fs/stage/3fs", "/mnt/3fs"}, "/3fs/stage/3fs"},
		{engineConfigCmd{Engine: "rtp-llm"}, []string{"/mnt/3fs"}, "/mnt/3fs"},
	} {
		mount, remark, err := c.cmd.chooseMount(c.mounted)
		got := strings.TrimSpace(mount + " " + remark)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%+v, mounted %q: %q, want %q", c.cmd, c.mounted, got, c.want)
		}
	}
}
