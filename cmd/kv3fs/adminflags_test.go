package main

import (
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// adminURL returns where a daemon that serves says that its metrics are.
func adminURL(t *testing.T, d *running) string {
	t.Helper()
	found := regexp.MustCompile(`msg="metrics, health and readiness" address=(\S+)`).FindStringSubmatch(d.said())
	if found == nil {
		t.Fatalf("no address: %s", d.said())
	}
	return found[1]
}

func ask(t *testing.T, url string) (int, string) {
	t.Helper()
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	a, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	return a.StatusCode, string(text)
}

// A daemon without a page service has metrics, and is not ready while its disk is full.
func TestAdminListen(t *testing.T) {
	requireFUSE(t)
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a small tmpfs")
	}
	data, point := t.TempDir(), filepath.Join(t.TempDir(), "mnt")
	if err := unix.Mount("kv3fs-test", data, "tmpfs", 0, "size=64m,mode=777"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(data, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	d := runUntil(t, binary(t), "msg=serving ", "serve", "--data", data, "--mount", point, "--drain", "1s", "--pages-listen", "off", "--capacity", "90%", "--admin-listen", "127.0.0.1:0")
	at := adminURL(t, d)
	if status, text := ask(t, at+"/readyz"); status != http.StatusOK {
		t.Errorf("ready: %d %q", status, text)
	}
	if err := os.WriteFile(filepath.Join(point, "file"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	_, text := ask(t, at+"/metrics")
	for _, want := range []string{
		`kv3fs_build_info{`, "kv3fs_data_works 1\n", "kv3fs_data_filesystem_bytes 6.7108864e+07\n", "kv3fs_keeper_files 1\n", "kv3fs_keeper_limit_bytes 6.0397977e+07\n",
		`kv3fs_keeper_removed_files_total{reason="room"} 0`, `kv3fs_ring_bytes_total{direction="read",directory="other"} 0`, "go_goroutines ", "process_open_fds ",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in %s", want, text)
		}
	}
	if strings.Contains(text, "kv3fs_pages_") {
		t.Error("metrics of a page service that there is not")
	}
	filler := filepath.Join(data, "filler")
	if err := os.WriteFile(filler, make([]byte, 64<<20), 0o600); err == nil {
		t.Fatal("the disk holds more than it has")
	}
	var status int
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) { // an answer may be a second old
		if status, text = ask(t, at+"/readyz"); status != http.StatusOK || time.Now().After(end) {
			break
		}
	}
	if status != http.StatusServiceUnavailable || !strings.HasPrefix(text, "space: ") || !strings.Contains(text, "ENOSPC") {
		t.Errorf("with a full disk: %d %q", status, text)
	}
	if status, _ := ask(t, at+"/healthz"); status != http.StatusOK {
		t.Errorf("healthz with a full disk: %d", status)
	}
	says := func(what string) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !strings.Contains(d.said(), what); time.Sleep(100 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("the log does not say %q", what)
			}
		}
	}
	says("the disk of the data directory is full")
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	says("the disk of the data directory has room again")
}

// A second daemon says who has the address; whoever has asked for that address is refused.
func TestAdminListenInUse(t *testing.T) {
	requireFUSE(t)
	taken, err := net.Listen("tcp", defaultAdminListen)
	if err != nil {
		t.Logf("%v: somebody else has it", err)
	} else {
		defer taken.Close()
	}
	bin, args := binary(t), []string{"serve", "--data", t.TempDir(), "--mount", filepath.Join(t.TempDir(), "mnt"), "--drain", "1s", "--pages-listen", "off"}
	d := runUntil(t, bin, "msg=serving ", args...)
	if said := d.said(); !strings.Contains(said, "no metrics, health and readiness") || !strings.Contains(said, defaultAdminListen) || !strings.Contains(said, "--admin-listen") {
		t.Error(said)
	}
	d.stop(t)
	d = runUntil(t, bin, "msg=serving ", append(args, "--admin-listen", defaultAdminListen)...)
	<-d.exited
	if said := d.said(); strings.Contains(said, "msg=serving ") || !strings.Contains(said, "address in use") {
		t.Error(said)
	}
}

func TestAdminFlags(t *testing.T) {
	dir := t.TempDir()
	open, own := filepath.Join(dir, "open"), filepath.Join(dir, "own")
	for path, mode := range map[string]os.FileMode{open: 0o644, own: 0o640} {
		if err := os.WriteFile(path, []byte("secret\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		adminFlags
		want string // part of the error; "": none
	}{
		{adminFlags{}, ""},
		{adminFlags{Listen: "off"}, ""},
		{adminFlags{Listen: "off", Pprof: true}, "--admin-listen: is off"},
		{adminFlags{Listen: "127.0.0.1:1", TokenFile: givenPath(own)}, ""},
		{adminFlags{TokenFile: givenPath(open)}, "chmod o="},
		{adminFlags{TokenFile: givenPath(dir + "/none")}, "no such file"},
		{adminFlags{Listen: "0.0.0.0:1"}, "needs a token"},
		{adminFlags{Listen: "0.0.0.0:1", TokenFile: givenPath(own)}, "needs a certificate"},
		{adminFlags{Listen: "nonsense"}, "HOST:PORT"},
		{adminFlags{Cert: "x"}, "--admin-key"},
		{adminFlags{Cert: givenPath(own), Key: givenPath(own)}, "--admin-cert"},
	} {
		_, err := c.config()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v", c.adminFlags, err)
		}
	}
}
