package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// reloading is a daemon with a configuration file.
type reloading struct {
	*running
	t         *testing.T
	bin       string
	file      string
	mount     string
	token     string
	admin     string
	always    string // the settings that stay
	dataFiles string
}

// startReloading starts one without a terminal, with further settings.
func startReloading(t *testing.T, settings string) *reloading {
	t.Helper()
	skipWithoutFUSE(t)
	dir := t.TempDir()
	r := &reloading{t: t, bin: binary(t), file: filepath.Join(dir, "kv3fs.yaml"), mount: filepath.Join(dir, "mnt"), token: filepath.Join(dir, "token"), dataFiles: filepath.Join(dir, "data")}
	r.always = fmt.Sprintf("data: %s\nmount: %s\nadmin-listen: 127.0.0.1:0\nadmin-token-file: %s\npages-listen: off\n", r.dataFiles, r.mount, r.token)
	r.writeToken("first")
	r.write(settings)
	t.Cleanup(func() { _ = unix.Unmount(r.mount, unix.MNT_DETACH) })
	r.running = runAs(t, &syscall.SysProcAttr{Setsid: true}, nil, r.bin, "msg=serving ", "serve", "--config", r.file)
	r.admin = adminURL(t, r.running)
	return r
}

func (r *reloading) write(settings string) {
	r.t.Helper()
	if err := os.WriteFile(r.file, []byte(r.always+settings), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

func (r *reloading) writeToken(token string) {
	r.t.Helper()
	if err := os.WriteFile(r.token, []byte(token+"\n"), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// reload runs "kv3fs reload".
func (r *reloading) reload(args ...string) (out string, status int) {
	cmd := exec.Command(r.bin, append([]string{"reload"}, args...)...)
	all, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		r.t.Error(err)
		return "", -1
	}
	return string(all), cmd.ProcessState.ExitCode()
}

// scraped returns the status of /metrics for a token.
func (r *reloading) scraped(token string) int {
	r.t.Helper()
	request, err := http.NewRequest(http.MethodGet, r.admin+"/metrics", nil)
	if err != nil {
		r.t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		r.t.Fatal(err)
	}
	answer.Body.Close()
	return answer.StatusCode
}

// limits are those that the daemon keeps to.
func (r *reloading) limits() (bytes int64, high float64) {
	r.t.Helper()
	out, err := exec.Command(r.bin, "stat", "--json", "--mount", r.mount).Output()
	if err != nil {
		r.t.Fatal(err)
	}
	var report struct {
		State struct {
			LimitBytes  int64   `json:"limit_bytes"`
			HighPercent float64 `json:"high_percent"`
		}
	}
	if err := json.Unmarshal(out, &report); err != nil {
		r.t.Fatalf("%v\n%s", err, out)
	}
	return report.State.LimitBytes, report.State.HighPercent
}

func TestReload(t *testing.T) {
	r := startReloading(t, "capacity: 64MiB\n")
	if out, status := r.reload(r.mount); status != 0 || out != "Nothing has changed.\n" {
		t.Errorf("%d: %s", status, out)
	}

	// A mistake anywhere, and nothing changes.
	for _, bad := range []struct{ settings, says string }{
		{"capacity: 128MiB\nworkers: none\n", ":7: workers: "},
		{"capacity: 128MiB\nlow-watermark: 99\n", ":7: low-watermark: "},
		{"capacity: 128MiB\nnonsense: 1\n", `:7: unknown key "nonsense"`},
		{"capacity: 128MiB\nadmin-cert: " + filepath.Join(t.TempDir(), "missing") + "\n", ":7: admin-cert: "},
		{"capacity: 128MiB\n- not a key\n", "kv3fs.yaml"},
		{"capacity: 4096PiB\n", "capacity"},
	} {
		r.write(bad.settings)
		if out, status := r.reload(r.mount); status != 1 || !strings.Contains(out, bad.says) {
			t.Errorf("%q: %d: %s", bad.settings, status, out)
		}
		if bytes, _ := r.limits(); bytes != 64<<20 {
			t.Fatalf("%q: the limit is %d now", bad.settings, bytes)
		}
	}
	if err := os.Remove(r.file); err != nil {
		t.Fatal(err)
	}
	if out, status := r.reload(r.mount); status != 1 || !strings.Contains(out, r.file) {
		t.Errorf("without its file: %d: %s", status, out)
	}

	// What may change does, and what may not is named, each time.
	r.write("capacity: 128MiB\nhigh-watermark: 80\nlow-watermark: 70\nlog-level: debug\nworkers: 32\nslow-io: 2s\n")
	out, status := r.reload("--pid", fmt.Sprint(r.cmd.Process.Pid))
	if want := "workers: 64 -> 32; needs a restart: requests are under way with it\nslow-io: 1s -> 2s\ncapacity: 67108864 -> 134217728\nhigh-watermark: 95 -> 80\nlow-watermark: 90 -> 70\nlog-level: INFO -> DEBUG\n"; status != exitRestart || out != want {
		t.Errorf("%d: %s\nwant %s", status, out, want)
	}
	await(t, "the limits", func() bool { bytes, high := r.limits(); return bytes == 128<<20 && high == 80 })
	out, status = r.reload("--json", r.mount)
	checkJSON(t, "reload", out)
	if status != exitRestart || strings.Count(out, `"name"`) != 1 || !strings.Contains(out, `"workers"`) {
		t.Errorf("%d: %s", status, out)
	}

	// The token is its file's.
	if first, second := r.scraped("first"), r.scraped("second"); first != http.StatusOK || second != http.StatusUnauthorized {
		t.Errorf("%d and %d", first, second)
	}
	r.writeToken("second")
	if out, _ := r.reload(r.mount); !strings.Contains(out, "admin-token-file: a token -> another token\n") {
		t.Error(out)
	}
	if first, second := r.scraped("first"), r.scraped("second"); first != http.StatusUnauthorized || second != http.StatusOK {
		t.Errorf("%d and %d", first, second)
	}

	// The token stays with its address.
	kept := r.always
	r.always = strings.Replace(strings.Replace(kept, "127.0.0.1:0", "off", 1), "admin-token-file", "# admin-token-file", 1)
	r.write("capacity: 128MiB\nhigh-watermark: 80\nlow-watermark: 70\nlog-level: debug\n")
	if out, status := r.reload(r.mount); status != exitRestart || !strings.Contains(out, "admin-token-file: "+r.token+" -> (not set); needs a restart: it is for another admin address") {
		t.Errorf("%d: %s", status, out)
	}
	if second, none := r.scraped("second"), r.scraped(""); second != http.StatusOK || none != http.StatusUnauthorized {
		t.Errorf("with the token: %d, without: %d", second, none)
	}
	r.always = kept

	// SIGHUP does the same, and the log has all of it.
	r.write("capacity: 96MiB\nhigh-watermark: 80\nlow-watermark: 70\nlog-format: json\n")
	if err := r.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	await(t, "the reload", func() bool { bytes, _ := r.limits(); return bytes == 96<<20 })
	for _, want := range []string{
		`msg="reload refused: nothing was changed" audit=true call=reload err="`, "uid=0 pid=", "msg=\"a setting has changed\" audit=true setting=capacity from=67108864 to=134217728",
		`msg="a changed setting needs a restart" audit=true setting=workers from=64 to=32 reason="requests are under way with it"`,
	} {
		if !strings.Contains(r.said(), want) {
			t.Errorf("its log lacks %s", want)
		}
	}
	await(t, "a line of JSON", func() bool {
		return strings.Contains(r.said(), `"audit":true,"setting":"capacity","from":"134217728","to":"100663296"`)
	})
	if strings.Contains(r.said(), "second") {
		t.Error("the log has the token")
	}
}

// Where hosts keep a directory by turns, a reload reaches the daemon, and operators' commands its keeper; the log has who gave them.
func TestReloadShared(t *testing.T) {
	r := startReloading(t, "shared: on\ncapacity: 64MiB\n")
	if out, err := exec.Command(r.bin, "pin", filepath.Join(r.mount, "models/*")).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	await(t, "the audit of the pin", func() bool {
		return strings.Contains(r.said(), `msg="an operator's command" audit=true call=pin `)
	})
	r.write("shared: on\ncapacity: 128MiB\nlog-level: debug\n")
	want := "capacity: 67108864 -> 134217728; needs a restart: the hosts that share the directory keep it by turns, each with the limits of its start\nlog-level: INFO -> DEBUG\n"
	if out, status := r.reload(r.mount); status != exitRestart || out != want {
		t.Errorf("%d: %s\nwant %s", status, out, want)
	}
}

// Reloads that meet, under load, are one after the other; one that meets a stop changes nothing and says so.
func TestReloadsAtOnce(t *testing.T) {
	r := startReloading(t, "capacity: 64MiB\ndrain: 5m\n")
	done := make(chan struct{})
	var load, reloads sync.WaitGroup
	load.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-done:
				return
			default:
			}
			if err := os.WriteFile(filepath.Join(r.mount, fmt.Sprint("f", n%16)), make([]byte, 64<<10), 0o644); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for i := range 6 {
		reloads.Go(func() {
			if i%2 == 0 {
				if err := r.cmd.Process.Signal(syscall.SIGHUP); err != nil {
					t.Error(err)
				}
			}
			if out, status := r.reload(r.mount); status != 0 {
				t.Errorf("%d: %s", status, out)
			}
		})
	}
	reloads.Wait()
	close(done)
	load.Wait()

	held, err := os.Create(filepath.Join(r.mount, "held"))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	await(t, "the stop", func() bool { return strings.Contains(r.said(), "msg=stopping") })
	await(t, "the refusal", func() bool {
		out, status := r.reload("--data", r.dataFiles)
		return status == 1 && strings.Contains(out, "the daemon is stopping: nothing was changed")
	})
	if err := held.Close(); err != nil {
		t.Error(err)
	}
	<-r.exited
	if r.err != nil {
		t.Errorf("%v\n%s", r.err, r.said())
	}
}

// A certificate that is renewed, or another one, is shown to new connections. One that does not fit its key changes nothing.
func TestReloadCertificate(t *testing.T) {
	dir := t.TempDir()
	write := func(name, of string) (settings string) {
		t.Helper()
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: of}, NotAfter: time.Now().Add(24 * time.Hour)}
		der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		private, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		for end, block := range map[string]*pem.Block{".crt": {Type: "CERTIFICATE", Bytes: der}, ".key": {Type: "PRIVATE KEY", Bytes: private}} {
			if err := os.WriteFile(filepath.Join(dir, name+end), pem.EncodeToMemory(block), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return fmt.Sprintf("admin-cert: %[1]s.crt\nadmin-key: %[1]s.key\n", filepath.Join(dir, name))
	}
	settings := write("a", "first")
	r := startReloading(t, settings)
	shows := func(want string) {
		t.Helper()
		conn, err := tls.Dial("tcp", strings.TrimPrefix(r.admin, "https://"), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if got := conn.ConnectionState().PeerCertificates[0].Subject.CommonName; got != want {
			t.Errorf("the certificate is the %s one, want the %s", got, want)
		}
	}
	shows("first")
	write("a", "second")
	if out, status := r.reload(r.mount); status != 0 || out != "Nothing has changed.\n" { // it is read for each connection
		t.Errorf("%d: %s", status, out)
	}
	shows("second")
	r.write(write("b", "third"))
	if out, status := r.reload(r.mount); status != 0 || !strings.Contains(out, "admin-cert: "+filepath.Join(dir, "a.crt")+" -> "+filepath.Join(dir, "b.crt")+"\n") {
		t.Errorf("%d: %s", status, out)
	}
	shows("third")
	r.write(strings.Replace(settings, "a.crt", "b.crt", 1))
	if out, status := r.reload(r.mount); status != 1 || !strings.Contains(out, "admin-cert: ") {
		t.Errorf("%d: %s", status, out)
	}
	shows("third")
}

// Every flag of serve may change while it serves, or has a reason why not.
func TestEveryFlagReloads(t *testing.T) {
	app, err := newParser(&flagValues{}, os.Stdout, &teller{stderr: os.Stderr}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range app.Model.Children {
		if command.Name != "serve" {
			continue
		}
		for _, flag := range command.Flags {
			if part, why := partOf(flag.Name); isKey(flag) && part == 0 && why == "" {
				t.Errorf("--%s needs a restart, and nothing says why", flag.Name)
			}
		}
	}
}
