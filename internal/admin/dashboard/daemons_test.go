package dashboard

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/admin/api"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/test/etcd"
)

// adminURL returns where a daemon says that its dashboard is.
func adminURL(t *testing.T, d *daemontest.Daemon) string {
	t.Helper()
	found := regexp.MustCompile(`msg="metrics, health and readiness" address=(\S+)`).FindStringSubmatch(d.Log())
	if found == nil {
		t.Fatalf("no address: %s", d.Log())
	}
	return found[1]
}

// answer returns what the API of a daemon says.
func answer[T any](t *testing.T, url, path string) (a T) {
	t.Helper()
	// It is killed and asked again.
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	w, err := client.Get(url + api.Prefix + path)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Body.Close()
	text, err := io.ReadAll(w.Body)
	if err == nil {
		err = json.Unmarshal(text, &a)
	}
	if err != nil || w.StatusCode != http.StatusOK {
		t.Fatalf("%s: %d %v %s", path, w.StatusCode, err, text)
	}
	return a
}

// eventually waits for something that nothing tells of. differs says what is not so yet.
func eventually(t *testing.T, differs func() string) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		why := differs()
		if why == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(why)
		}
	}
}

// What a daemon evicts, and how long that had not been used, is on the page as in the API, and true of the files.
func testEvictions(t *testing.T, open func(int64, int64) *page) {
	const size = 256 << 10
	data := filepath.Join(daemontest.NewDir(t), "data")
	if err := os.Mkdir(data, 0o755); err != nil {
		t.Fatal(err)
	}
	unused := map[string]time.Duration{} // by file
	put := func(dir, name string) {
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, size), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// Each time is far from the bounds of what is counted together, for a slow machine.
	for i, age := range []time.Duration{9 * time.Minute, 30 * time.Minute, 2 * time.Hour, 2 * time.Hour, 8 * time.Hour, 2 * 24 * time.Hour, 5 * 24 * time.Hour, 60 * 24 * time.Hour} {
		name := fmt.Sprintf("model@1@0@%x@half.data", i+1) // LMCache's
		put(data, name)
		at := time.Now().Add(-age)
		if err := os.Chtimes(filepath.Join(data, name), at, at); err != nil {
			t.Fatal(err)
		}
		unused[name] = age
	}
	d := daemontest.ServeWith(t, daemontest.Options{Data: data, Flags: []string{"--drain", "1s", "--pages-listen", "off", "--admin-listen", "127.0.0.1:0", "--capacity", fmt.Sprint(6 * size)}})
	url := adminURL(t, d)
	p := open(1280, 900)
	p.open(url)

	// evicted waits until at least n files have gone and all agree, and returns how many went.
	evicted := func(n int) int {
		t.Helper()
		gone := 0
		eventually(t, func() string {
			before := answer[api.Keeping](t, url, "keeper")
			count, ages := 0, make([]int64, len(before.AgeAtEviction.Files))
			for name, age := range unused {
				if _, err := os.Stat(filepath.Join(data, name)); !os.IsNotExist(err) {
					continue
				}
				count++
				i := slices.IndexFunc(before.AgeAtEviction.BoundsSeconds, func(bound float64) bool { return age.Seconds() <= bound })
				if i < 0 {
					i = len(ages) - 1
				}
				ages[i]++
			}
			room := slices.IndexFunc(before.Evictions, func(e api.Eviction) bool { return e.Reason == "room" })
			if e := before.Evictions[room]; count < n || e.Files != int64(count) || e.Bytes == nil || *e.Bytes < int64(count)*size || before.AgeAtEviction.Count != int64(count) || !slices.Equal(before.AgeAtEviction.Files, ages) {
				return fmt.Sprintf("%d files have gone, by age %v, and the API has %+v %+v", count, ages, e, before.AgeAtEviction)
			}
			shown := p.numbers()
			if after := answer[api.Keeping](t, url, "keeper"); after.AgeAtEviction.Count != int64(count) {
				return "files are being evicted"
			}
			want := map[string]string{
				fmt.Sprintf("keeper:/evictions/%d/files_total", room): fmt.Sprint(count),
				fmt.Sprintf("keeper:/evictions/%d/bytes_total", room): fmt.Sprint(*before.Evictions[room].Bytes),
			}
			for i, n := range ages {
				if n > 0 {
					want[fmt.Sprintf("keeper:/age_at_eviction/files/%d", i)] = fmt.Sprint(n)
				}
			}
			has := map[string]string{}
			for _, s := range shown {
				if strings.HasPrefix(s.From, "keeper:/evictions/") || strings.HasPrefix(s.From, "keeper:/age_at_eviction/") {
					has[s.From] = s.Value
				}
			}
			if fmt.Sprint(has) != fmt.Sprint(want) { // maps are printed in order
				return fmt.Sprintf("the page has %v, the API %v", has, want)
			}
			gone = count
			return ""
		})
		return gone
	}
	first := evicted(2) // at the start, there are eight where six fit
	// More room is needed while the page is open.
	for i := range 3 {
		put(d.Mount, fmt.Sprintf("model@1@0@%x@half.data", 0x100+i))
	}
	evicted(first + 1)
	p.until(`document.querySelector("#evictions").textContent.includes("30\u00a0d and more")`)
	p.quiet(url)
}

// hostOf starts a daemon that takes itself for a host of its own: in its mount namespace the kernel has another boot.
func hostOf(t *testing.T, data, identity string, flags ...string) *daemontest.Daemon {
	t.Helper()
	binary, err := daemontest.Binary()
	other, bad := os.ReadFile("/proc/sys/kernel/random/uuid")
	if err := errors.Join(err, bad); err != nil {
		t.Fatal(err)
	}
	dir := daemontest.NewDir(t)
	boot, program := filepath.Join(dir, "boot"), filepath.Join(dir, "kv3fs")
	script := fmt.Sprintf("#!/bin/sh\nexec unshare --mount sh -ec 'mount --bind %s /proc/sys/kernel/random/boot_id; exec %s \"$@\"' sh \"$@\"\n", boot, binary)
	if err := errors.Join(os.WriteFile(boot, other, 0o644), os.WriteFile(program, []byte(script), 0o755)); err != nil {
		t.Fatal(err)
	}
	return daemontest.ServeWith(t, daemontest.Options{Data: data, Binary: program, Flags: append([]string{
		"--drain", "1s", "--identity", identity, "--shared", "on", "--deadline", "1m", "--admin-listen", "127.0.0.1:0"}, flags...)})
}

// Hosts that share a page index are on the page as in the API of each. The one that dies is shown as gone, and who leads then.
func testHosts(t *testing.T, open func(int64, int64) *page) {
	daemontest.NeedRoot(t)
	members := etcd.Start(t, etcd.Options{Members: 1})
	token := filepath.Join(daemontest.NewDir(t), "token")
	if err := os.WriteFile(token, []byte("a secret of hosts\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// The file system that they share is a 3FS. One of the test's own process could wait for that, and that for it.
	data := filepath.Join(daemontest.Serve(t, "--pages-listen", "off").Mount, "shared")
	if err := os.Mkdir(data, 0o755); err != nil {
		t.Fatal(err)
	}
	daemons, urls := map[string]*daemontest.Daemon{}, map[string]string{}
	for _, name := range []string{"host-a", "host-b", "host-c"} {
		daemons[name] = hostOf(t, data, name, "--pages-listen", "127.0.0.1:0", "--pages-store", "etcd://"+members.Endpoints()[0]+"/dashboard", "--pages-peer-listen", "127.0.0.1:0", "--pages-peer-token-file", token)
		urls[name] = adminURL(t, daemons[name])
	}
	pages := map[string]*page{}

	type row struct{ Host, Role, Lag, Version string }
	// shown returns the rows of a page's table.
	shown := func(p *page) []row {
		return value[[]row](p, `Array.from(document.querySelectorAll("#hosts tbody tr"), (r) => {
			const [host, role, lag, version] = Array.from(r.children, (c) => c.querySelector("data")?.value ?? c.querySelector(".stack > span")?.textContent ?? c.textContent);
			return {Host: host, Role: role, Lag: lag, Version: version};
		})`)
	}
	// agree waits until the page of each host that lives has what its API has, which is the hosts that live and one of them as the leader; and
	// returns that.
	agree := func(dead string) (leader string) {
		t.Helper()
		for name, url := range urls {
			if name == dead {
				continue
			}
			eventually(t, func() string {
				before := answer[api.Hosts](t, url, "hosts")
				rows := shown(pages[name])
				if after := answer[api.Hosts](t, url, "hosts"); fmt.Sprint(before) != fmt.Sprint(after) {
					return "the hosts go on"
				}
				want, leads, living := []row{}, 0, len(daemons)
				if dead != "" {
					living--
				}
				for _, h := range before.Hosts {
					r := row{h.ID, h.Role, fmt.Sprint(h.Lag), h.Version}
					if h.Self != (h.ID == name) {
						return fmt.Sprintf("host %s says that it is %s", name, h.ID)
					}
					if h.Self {
						r.Host += " (this one)"
					}
					if h.Role == "leading" {
						leads++
					}
					if h.ID == dead {
						return fmt.Sprintf("host %s has died, and is listed still", dead)
					}
					want = append(want, r)
				}
				if !before.Cluster || before.Self != name || len(want) != living || leads != 1 || before.Leader == "" {
					return fmt.Sprintf("host %s tells of %+v", name, before)
				}
				if dead != "" {
					if i := slices.IndexFunc(rows, func(r row) bool { return r.Host == dead }); i < 0 || !strings.HasPrefix(rows[i].Role, "gone, last listed at ") {
						return fmt.Sprintf("host %s has died, and the page of %s has %+v", dead, name, rows)
					} else {
						rows = slices.Delete(rows, i, i+1)
					}
				}
				if !slices.Equal(rows, want) {
					return fmt.Sprintf("the page of %s has %+v, the API %+v", name, rows, want)
				}
				leader = before.Leader
				return ""
			})
		}
		return leader
	}
	for name, url := range urls {
		pages[name] = open(1280, 900)
		pages[name].open(url)
	}
	leader := agree("")
	daemons[leader].Kill()
	if next := agree(leader); next == leader {
		t.Errorf("%s was killed, and leads", leader)
	}
	for name, p := range pages {
		if name == leader {
			p.until(`document.getElementById("verdict").textContent.startsWith("Not reachable since ")`)
		} else {
			p.quiet(urls[name])
		}
	}
}
