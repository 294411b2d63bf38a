package blocksoak

import (
	"bufio"
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore"
)

const kills = 6 // of each chain

// A process is killed at random moments while it saves. What it had flushed is there,
// and nothing that is there is wrong.
func TestKilledWriter(t *testing.T) {
	d := startDaemon(t)
	layout := kvstore.Layout{BlockBytes: 64 << 10, ShardBytes: 16 << 10}
	for _, store := range append([]string{"Segment|Posix", "Segment|Ds3fs"}, stores...) {
		t.Run(store, func(t *testing.T) {
			o, _ := openingOf(t, "Cache|"+store, d, layout, 512<<20)
			next, kept, whole := 0, map[int]bool{}, 0
			for kill := range kills {
				first := next
				next = writeAndDie(t, order{o, first}, kill%3, rand.N(60*time.Millisecond))
				for n := first; n < next; n++ {
					kept[n] = true
				}
				c, err := o.open()
				if err != nil {
					t.Fatalf("after kill %d: %v", kill+1, err)
				}
				for n := range next + 20 { // what was under way may be there, too
					switch v, err := c.load(t.Context(), n); {
					case err != nil:
						t.Errorf("block %d: %v", n, err)
					case v == wrong:
						t.Errorf("block %d has wrong bytes", n)
					case v == missing && kept[n]:
						t.Errorf("block %d was flushed and is lost", n)
					case v == right && n >= next:
						whole++
					}
				}
				if err := c.Close(); err != nil {
					t.Error(err)
				}
				next += 20
			}
			if strings.HasPrefix(store, "Segment|") {
				allThere(t, o.far(), kept)
			}
			t.Logf("%d kills, %d blocks flushed and all there, %d more were whole", kills, len(kept), whole)
		})
	}
}

// allThere checks that a store has these blocks.
func allThere(t *testing.T, o opening, blocks map[int]bool) {
	t.Helper()
	c, err := o.open()
	if err != nil {
		t.Fatal(err)
	}
	for n := range blocks {
		if v, err := c.load(t.Context(), n); err != nil || v != right {
			t.Errorf("block %d was flushed, and in %s it is not right: %v, %v", n, o.Chain, v, err)
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// writeAndDie runs a writer, kills it a while after it has flushed so many batches, and
// returns the first number that it had not flushed.
func writeAndDie(t *testing.T, o order, batches int, after time.Duration) (next int) {
	t.Helper()
	arg, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleEnv+"=writer")
	cmd.Stdin = bytes.NewReader(arg)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	next = o.First
	for line := 0; lines.Scan(); line++ {
		if line == batches {
			kill := time.AfterFunc(after, func() { cmd.Process.Kill() })
			defer kill.Stop()
		}
		if line == 0 { // it is open
			continue
		}
		if next, err = strconv.Atoi(lines.Text()); err != nil {
			t.Errorf("the writer printed %q", lines.Text())
		}
	}
	if cmd.Wait(); cmd.ProcessState.Exited() {
		t.Fatalf("the writer ended by itself: %s", &said)
	}
	return next
}
