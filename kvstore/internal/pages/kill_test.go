package pages

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// optionsOf is the environment variable with the options of the store that a child process
// opens.
const optionsOf = "KV3FS_PAGES_CHILD"

// TestChild is run by a child process: it saves block after block, layer by layer, and
// prints which are settled, until it is killed.
func TestChild(t *testing.T) {
	text := os.Getenv(optionsOf)
	if text == "" {
		t.Skip("this is for the child of TestKilled")
	}
	var o Options
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, o)
	for first := 0; ; first += 4 {
		stored(t, s, keysOf(first, 4)...)
		fmt.Println(first)
		some := shardsOf(key(1_000_000 + first))
		task, err := s.Save(t.Context(), some[:2])
		results(t, task, err)
	}
}

// Blocks that were settled before a kill -9 are there after it. Half-written ones are
// not.
func TestKilled(t *testing.T) {
	h := newHost(t, pageservice.Options{})
	o := h.options(t.TempDir(), 4000)
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	settled := -4
	for round := range 3 {
		child := exec.CommandContext(t.Context(), self, "-test.run=^TestChild$", "-test.timeout=60s")
		child.Env = append(os.Environ(), optionsOf+"="+string(text))
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for n := 0; n < 3+5*round && lines.Scan(); n++ {
			first, err := strconv.Atoi(lines.Text())
			if err != nil {
				t.Fatalf("the child printed %q", lines.Text())
			}
			settled = max(settled, first)
		}
		if err := child.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for lines.Scan() {
			if first, err := strconv.Atoi(lines.Text()); err == nil {
				settled = max(settled, first)
			}
		}
		_ = child.Wait() // its error says that it was killed
		s := mustOpen(t, o)
		there(t, s, keysOf(0, settled+4)...)
		for i, found := range lookup(t, s, keysOf(1_000_000, settled+100)...) {
			if found {
				t.Errorf("a block of which a shard is missing is found: %d", i)
			}
		}
		s.Close()
	}
	t.Logf("%d blocks were settled", settled+4)
}
