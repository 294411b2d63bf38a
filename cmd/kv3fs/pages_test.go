package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// running is a serving kv3fs process and its log.
type running struct {
	cmd    *exec.Cmd
	exited chan struct{}
	err    error

	mu  sync.Mutex
	log bytes.Buffer
}

func (r *running) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.Write(p)
}

func (r *running) said() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.String()
}

// runUntil starts kv3fs and waits until its log contains a text, or it ends.
func runUntil(t *testing.T, bin, says string, args ...string) *running {
	t.Helper()
	return runAs(t, nil, nil, bin, says, args...)
}

// runAs is runUntil for a process with attributes and a standard input.
func runAs(t *testing.T, as *syscall.SysProcAttr, input *os.File, bin, says string, args ...string) *running {
	t.Helper()
	r := &running{cmd: exec.Command(bin, args...), exited: make(chan struct{})}
	r.cmd.Stderr, r.cmd.SysProcAttr = r, as
	if !slices.Contains(args, "--restart-state") && !slices.Contains(args, "--config") { // what is killed here has no successor
		r.cmd.Env = append(os.Environ(), "KV3FS_RESTART_STATE=off")
	}
	if input != nil {
		r.cmd.Stdin = input
	}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(r.exited)
		r.err = r.cmd.Wait()
	}()
	t.Cleanup(func() {
		r.stop(t)
		if t.Failed() {
			t.Logf("kv3fs %s logged:\n%s", strings.Join(args, " "), r.said())
		}
	})
	for deadline := time.Now().Add(2 * time.Minute); !strings.Contains(r.said(), says); time.Sleep(5 * time.Millisecond) {
		select {
		case <-r.exited:
			return r
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("its log never contained %q", says)
		}
	}
	return r
}

// stop sends SIGTERM and waits until the process has ended.
func (r *running) stop(t *testing.T) {
	t.Helper()
	_ = r.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-r.exited:
	case <-time.After(2 * time.Minute):
		t.Error("SIGTERM did not end it")
		_ = r.cmd.Process.Kill()
		<-r.exited
	}
}

// unixPost sends a request to a page service on a socket.
func unixPost(t *testing.T, socket, path, body string) (status int) {
	t.Helper()
	c := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	w, err := c.Post("http://unix"+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	w.Body.Close()
	return w.StatusCode
}

// TestPagesCommands runs the page service alone, and every command against it.
func TestPagesCommands(t *testing.T) {
	bin, dir := binary(t), t.TempDir()
	socket, data, token := filepath.Join(dir, "s"), filepath.Join(dir, "data"), filepath.Join(dir, "token")
	kv3fs := func(args ...string) (string, string, int) {
		t.Helper()
		cmd := exec.Command(bin, args...)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		killer := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
		defer killer.Stop()
		_ = cmd.Run()
		return out.String(), errs.String(), cmd.ProcessState.ExitCode()
	}
	pages := func(args ...string) (string, string, int) {
		t.Helper()
		return kv3fs(append([]string{"pages"}, append(args, "--url", "unix:"+socket)...)...)
	}
	if _, errs, code := pages("stat"); code != exitFailed || !strings.Contains(errs, "no page service at unix:"+socket+": ") || !strings.Contains(errs, "is kv3fs serve running?") {
		t.Errorf("no service: %d %s", code, errs)
	}
	service := runUntil(t, bin, "serving pages", "pages", "serve", "--data", data, "--listen", "unix:"+socket+",m2=127.0.0.1:0")
	if out, _, code := pages("stat"); code != 0 || !strings.Contains(out, "No engine has initialised") {
		t.Errorf("empty: %d %s", code, out)
	}
	for _, request := range [][2]string{
		{"/rank/0/initialize", `{"num_pages":4}`}, {"/rank/1/initialize", `{"num_pages":4}`},
		{"/keys/batch_allocate", `{"rank":0,"keys":[["K",""],["a\u001bb",""]]}`}, {"/keys/confirm_write", `{"rank":0,"confirmations":[["K",0],["a\u001bb",1]]}`},
		{"/keys/batch_allocate", `{"rank":1,"keys":[["K",""]]}`}, {"/keys/confirm_write", `{"rank":1,"confirmations":[["K",0]]}`},
		{"/ns/m2/0/initialize", `{"num_pages":4}`},
	} {
		if status := unixPost(t, socket, request[0], request[1]); status/100 != 2 {
			t.Fatal(request, status)
		}
	}
	out, _, _ := pages("stat")
	for _, want := range []string{"namespace", "default", "m2", "sglang/kv/0", "vllm"} {
		if !strings.Contains(out, want) {
			t.Errorf("stat without %q:\n%s", want, out)
		}
	}
	out, _, _ = pages("stat", "--namespace", "m2", "--json")
	var stat struct {
		Schema int
		Spaces []struct {
			Space struct{ Namespace, Set string }
			Ranks []struct {
				Free int `json:"free"`
			}
		}
	}
	err := json.Unmarshal([]byte(out), &stat)
	if spaces := stat.Spaces; err != nil || len(spaces) != 1 || spaces[0].Space.Set != "sglang/kv/0" || spaces[0].Ranks[0].Free != 4 {
		t.Errorf("%v\n%s", err, out)
	}
	checkJSON(t, "pages stat", out)
	out, _, _ = pages("ls", "--json")
	checkJSON(t, "pages ls", out)
	out, _, _ = pages("stat", "--set", "vllm")
	if !strings.Contains(out, "3 (0:2 1:1)") {
		t.Errorf("stat does not show which rank lacks a key:\n%s", out)
	}
	out, _, _ = pages("ls", "--set", "vllm")
	if !strings.Contains(out, "0:0 1:0") || !strings.Contains(out, `"a\x1bb"`) || strings.Contains(out, "\x1b") {
		t.Errorf("ls:\n%s", out)
	}
	if out, _, _ := pages("ls", "--limit", "1", "--after", "K"); strings.Contains(out, "vllm  K ") || !strings.Contains(out, `x1bb`) {
		t.Errorf("ls after:\n%s", out)
	}
	for _, c := range []struct {
		args []string
		want string
		code int
	}{
		{[]string{"clear"}, "--yes", exitUsage},
		{[]string{"evict"}, "--keys", exitUsage},
		{[]string{"evict", "--keys", "0"}, "--keys: 0", exitUsage},
		{[]string{"ls", "--limit", "0"}, "--limit: 0", exitUsage},
		{[]string{"ls", "--set", "vlm"}, `no engine has initialised "vlm"`, exitFailed},
		{[]string{"clear", "--yes", "--namespace", "nobody"}, `namespace "nobody"`, exitFailed},
		{[]string{"stat", "--namespace", "nope"}, `in namespace "nope"; there is vllm in the default namespace, sglang/kv/0 in namespace "m2"`, exitFailed},
		{[]string{"stat", "--token-file", filepath.Join(dir, "none")}, "no such file", exitUsage},
	} {
		if _, errs, code := pages(c.args...); code != c.code || !strings.Contains(errs, c.want) {
			t.Errorf("%v: %d %s", c.args, code, errs)
		}
	}
	if out, _, code := pages("evict", "--keys", "1", "--set", "vllm"); code != 0 || !strings.Contains(out, "vllm: evicted 1 keys") {
		t.Errorf("evict: %d %s", code, out)
	}
	if _, errs, code := pages("forget-rank", "--rank", "1"); code != exitUsage || !strings.Contains(errs, "--yes") {
		t.Errorf("forget-rank without --yes: %d %s", code, errs)
	}
	for command, args := range map[string][]string{"evict": {"--keys", "1", "--set", "vllm"}, "forget-rank": {"--rank", "1", "--yes"}} {
		out, errs, code := pages(append([]string{command, "--json"}, args...)...)
		if code != 0 {
			t.Errorf("%s --json: %d %s", command, code, errs)
		}
		checkJSON(t, "pages "+command, out)
	}
	if out, _, code := pages("clear", "--yes", "--json"); code != 0 || !strings.Contains(out, `"set": "vllm"`) {
		t.Errorf("clear: %d %s", code, out)
	} else {
		checkJSON(t, "pages clear", out)
	}
	if status := unixPost(t, socket, "/keys/get_locations", `{"rank":0,"keys":["K"]}`); status != 200 {
		t.Errorf("an engine after the flush: %d", status)
	}

	// A second service on the same data fails; its error names the process that uses it.
	if _, errs, code := kv3fs("pages", "serve", "--data", data, "--listen", "127.0.0.1:0"); code != exitFailed || !strings.Contains(errs, "process ") {
		t.Errorf("twice: %d %s", code, errs)
	}
	service.stop(t)
	if _, err := os.Stat(socket); !os.IsNotExist(err) {
		t.Errorf("the socket is left behind: %v", err)
	}

	for _, c := range []struct {
		args []string
		want string
		code int
	}{
		{[]string{"--listen", "nowhere"}, "want HOST:PORT", exitUsage},
		{[]string{"--listen", "a/b=127.0.0.1:0"}, "namespace", exitUsage},
		{[]string{"--lease", "0s"}, "lease", exitUsage},
		{[]string{"--batch-limit=-1"}, "--batch-limit: -1", exitUsage},
		{[]string{"--tp=-1"}, "--tp: -1", exitUsage},
		{[]string{"--tp=1000000"}, "--tp: 1000000", exitUsage},
		{[]string{"--token-file", token}, "is empty", exitUsage},
	} {
		if err := os.WriteFile(token, []byte("\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, errs, code := kv3fs(append([]string{"pages", "serve", "--data", data}, c.args...)...); code != c.code || !strings.Contains(errs, c.want) {
			t.Errorf("%v: %d %s", c.args, code, errs)
		}
	}
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	runUntil(t, bin, "serving pages", "pages", "serve", "--data", data, "--listen", "unix:"+socket, "--token-file", token)
	if _, errs, code := pages("stat"); code != exitFailed || !strings.Contains(errs, "--token-file") {
		t.Errorf("no token: %d %s", code, errs)
	}
	if out, errs, code := pages("stat", "--token-file", token); code != 0 || !strings.Contains(out, "vllm") {
		t.Errorf("with the token: %d %s %s", code, out, errs)
	}
}

// TestServePages: the daemon has a page service, which keeps its keys when it is killed
// and started again. A configured address that is in use is an error; the default address
// in use is a warning.
func TestServePages(t *testing.T) {
	requireFUSE(t)
	bin, dir := binary(t), t.TempDir()
	socket := filepath.Join(dir, "s")
	serve := func(args ...string) *running {
		t.Helper()
		return runUntil(t, bin, "msg=serving ", append([]string{"serve", "--data", filepath.Join(dir, "data"), "--mount", filepath.Join(dir, "mnt"), "--drain", "2s"}, args...)...)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	r := serve("--pages-listen", taken.Addr().String())
	<-r.exited
	if r.cmd.ProcessState.ExitCode() != exitFailed || !strings.Contains(r.said(), "address already in use") {
		t.Errorf("a taken address: %s", r.said())
	}

	r = serve("--pages-listen", "unix:"+socket, "--tp", "2")
	for _, request := range [][2]string{
		{"/rank/0/initialize", `{"num_pages":4}`}, {"/rank/1/initialize", `{"num_pages":4}`}, {"/keys/batch_allocate", `{"rank":0,"keys":[["K",""]]}`}, {"/keys/confirm_write", `{"rank":0,"confirmations":[["K",0]]}`},
	} {
		if status := unixPost(t, socket, request[0], request[1]); status/100 != 2 {
			t.Fatal(request, status)
		}
	}
	_ = r.cmd.Process.Kill()
	<-r.exited
	r = serve("--pages-listen", "unix:"+socket)
	cmd := exec.Command(bin, "pages", "ls", "--url", "unix:"+socket)
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "vllm  K    0:0") {
		t.Errorf("after a kill: %v\n%s", err, out)
	}
	r.stop(t)
	if r.err != nil {
		t.Errorf("stopped: %v", r.err)
	}

	// The default address is in use: by this listener, if by no other process.
	if l, err := net.Listen("tcp", defaultPagesListen); err == nil {
		defer l.Close()
	}
	r = serve()
	if !strings.Contains(r.said(), "msg=serving ") || !strings.Contains(r.said(), "--pages-listen") {
		t.Errorf("the default address is taken: %s", r.said())
	}
	r.stop(t)
	r = serve("--pages-listen", "off")
	if strings.Contains(r.said(), "page service") {
		t.Errorf("off: %s", r.said())
	}
}
