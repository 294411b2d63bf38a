package rtpfiles

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/test/seed"
)

// killsEnv is how many children TestKilled kills. The nightly run sets it.
const killsEnv = "KV3FS_KILLS"

// many returns the number in a variable of the environment, or else few.
func many(t *testing.T, name string, few int) int {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return few
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// childRoot is where a child saves a prompt in pieces until it is killed.
const childRoot = "KV3FS_TEST_RTPFILES_ROOT"

// pieces are the blocks of each Save of the child: the ends of items and of batches fall
// together in every way.
var pieces = []int{16, 1, 7, 8, 32, 5, 5, 6, 16, 3}

// child saves pieces of a prompt, and says how many blocks are there after each.
func child(root string) error {
	s, err := OpenRTPLLM(Options{Root: root, Layout: testLayout}, testDir)
	if err != nil {
		return err
	}
	ctx := context.Background()
	for n, i := 0, 0; ; i++ {
		piece := pieces[i%len(pieces)]
		if _, err := s.LookupPrefix(ctx, prompt(0, n+piece)); err != nil {
			return err
		}
		raw := content(testLayout, n, piece)
		task, err := s.Save(ctx, testLayout.ByBlock(prompt(n, piece), slices.Collect(slices.Chunk(raw, int(testLayout.BlockBytes)))))
		if err == nil {
			err = task.Wait(ctx)
		}
		if err == nil && i%3 == 2 {
			err = s.Flush(ctx)
		}
		if err != nil {
			return err
		}
		n += piece
		fmt.Println(n)
	}
}

// A process that is killed leaves every block that it has saved, no other bytes, and no item
// without those before it.
func TestKilled(t *testing.T) {
	random := rand.New(rand.NewPCG(seed.New(t), 0))
	for range many(t, killsEnv, 4) {
		root := t.TempDir()
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), childRoot+"="+root)
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		saved, lines := 0, bufio.NewScanner(out)
		for wait := 1 + random.IntN(2*len(pieces)); lines.Scan(); wait-- {
			if saved, err = strconv.Atoi(lines.Text()); err != nil {
				t.Fatalf("the child says %q", lines.Text())
			}
			if wait == 0 {
				time.Sleep(time.Duration(random.IntN(10_000)) * time.Microsecond) // anywhere in the pieces that follow
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		_ = cmd.Wait() // its status is that it was killed
		if saved == 0 {
			t.Fatal("the child has saved nothing")
		}
		s := openTest(t, "RtpLlm", Options{Root: root})
		hits(t, s, 0, saved, true)
		load(t, s, saved, 80) // no wrong bytes
		last := 0
		for first := 0; first < saved+80; first += 16 {
			for n := 1; n <= 16; n++ {
				if _, err := os.Stat(filepath.Join(root, itemPath(first, n))); err == nil {
					if first > last {
						t.Errorf("there is an item of block %d, and none of block %d", first, last)
					}
					if n == 16 {
						last = first + 16
					}
				}
			}
		}
		// Another process goes on.
		if _, err := s.LookupPrefix(t.Context(), prompt(0, saved+20)); err != nil {
			t.Fatal(err)
		}
		save(t, s, 0, saved+20)
		flush(t, s)
		if n := match(t, root, saved+20, 16); n != saved+20 {
			t.Errorf("RTP-LLM finds %d of %d blocks", n, saved+20)
		}
	}
}
