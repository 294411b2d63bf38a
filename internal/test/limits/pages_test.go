package limits

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/hostile"
)

func pagesPrograms() map[string]hostile.Program {
	return map[string]hostile.Program{"connect-pages": connectPages, "hoard-keys": hoardKeys}
}

// pagesAddress returns an address for a page service that no other test has.
func pagesAddress() string {
	pid := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d:18000", 64+pid>>16, pid>>8&255, pid&255)
}

// connectPages opens connections to the page service until it is stopped,
// and sends nothing but their first bytes.
func connectPages(s *hostile.Self) error {
	var a struct {
		Address, First string
		Count          int
	}
	if err := s.Args(&a); err != nil {
		return err
	}
	all := make([]net.Conn, a.Count)
	for i := range all {
		c, err := net.DialTimeout("tcp", a.Address, hostile.Patience)
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := io.WriteString(c, a.First); err == nil {
			all[i] = c
		}
	}
	if err := s.Report("ready"); err != nil {
		return err
	}
	<-s.Stopped()
	return nil
}

// queryPages asks the page service for a key on a new connection, with a body of some
// length.
func queryPages(address string, bodyBytes int) error {
	body := []byte(`{"keys":["k"]`)
	body = append(body, bytes.Repeat([]byte(" "), max(0, bodyBytes-len(body)-1))...)
	client := http.Client{Timeout: hostile.Patience, Transport: &http.Transport{DisableKeepAlives: true}}
	w, err := client.Post("http://"+address+"/keys/batch_exists", "application/json", bytes.NewReader(append(body, '}')))
	if err != nil {
		return err
	}
	defer w.Body.Close()
	if text, err := io.ReadAll(w.Body); err != nil || w.StatusCode != http.StatusOK {
		return fmt.Errorf("%d %s %v", w.StatusCode, text, err)
	}
	return nil
}

// One user's silent connections, or large bodies that do not come, lock nobody out of the
// page service.
func TestPagesForOthers(t *testing.T) {
	at := pagesAddress()
	serve(t, "--pages-listen", at, "--pages-connections", "400", "--pages-body-memory", "16777216")
	const head = "POST /keys/batch_exists HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8388608\r\n\r\n{"
	for name, attack := range map[string]struct {
		First string
		Count int
	}{"silent": {"", 500}, "in the head": {"POST", 500}, "slow bodies": {head, 40}} {
		t.Run(name, func(t *testing.T) {
			var ready string
			hog := hostile.Start(t, hostile.NewUser(t), "connect-pages", map[string]any{"Address": at, "First": attack.First, "Count": attack.Count})
			hog.Await(&ready)
			for range 20 {
				if err := queryPages(at, 1<<20); err != nil {
					t.Fatal(err)
				}
			}
			if err := hog.Stop(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// hoardKeys reserves pages of a rank that has as many as a rank may have.
func hoardKeys(s *hostile.Self) error {
	var a struct {
		Address string
		Keys    int
	}
	if err := s.Args(&a); err != nil {
		return err
	}
	post := func(path string, body []byte) error {
		client := http.Client{Timeout: hostile.Patience}
		w, err := client.Post("http://"+a.Address+path, "application/json", bytes.NewReader(body))
		if err != nil {
			return err
		}
		defer w.Body.Close()
		if _, err := io.Copy(io.Discard, w.Body); err != nil || w.StatusCode/100 != 2 {
			return fmt.Errorf("%s: %d %v", path, w.StatusCode, err)
		}
		return nil
	}
	if err := post("/0/initialize", []byte(`{"num_pages":2147483648}`)); err != nil {
		return err
	}
	const batch = 1 << 15
	for n := 0; n < a.Keys; n += batch {
		keys := make([][2]string, batch)
		for i := range keys {
			keys[i][0] = fmt.Sprint(n + i)
		}
		body, err := json.Marshal(map[string]any{"keys": keys})
		if err != nil {
			return err
		}
		if err := post("/0/reserve_and_allocate_page_indices", body); err != nil {
			return err
		}
	}
	return s.Report("done")
}

// A user who reserves millions of pages takes no more memory than the page index may have.
func TestPagesMemoryOfOneUser(t *testing.T) {
	at := pagesAddress()
	d := serve(t, "--pages-listen", at, "--pages-memory", fmt.Sprint(16<<20))
	before := residentBytes(t, d.PID())
	var done string
	hog := hostile.Start(t, hostile.NewUser(t), "hoard-keys", map[string]any{"Address": at, "Keys": 2 << 20})
	hog.Await(&done)
	if grown := residentBytes(t, d.PID()) - before; grown > 192<<20 {
		t.Errorf("the daemon has grown by %d bytes", grown)
	} else {
		t.Logf("the daemon has grown by %d bytes", grown)
	}
	if err := hog.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := queryPages(at, 0); err != nil {
		t.Error(err)
	}
}

// residentBytes returns the memory of a process that is not that of files.
func residentBytes(t *testing.T, pid int) (bytes int64) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if _, err := fmt.Sscanf(line, "RssAnon: %d kB", &bytes); err == nil {
			return bytes << 10
		}
	}
	t.Fatal("no RssAnon")
	return 0
}
