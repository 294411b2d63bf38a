package segment

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
	"strings"
	"sync"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
)

// crasher is an engine that simulates a kill or a power cut at a given write.
type crasher struct {
	*interceptor
	t   *testing.T
	dir string

	mu     sync.Mutex
	at     int // the write that is torn; later ones are not made
	rng    *rand.Rand
	late   []undo // what was there before the last writes
	power  bool   // a power cut: any of the last writes may be missing or torn
	left   string // the directory as the crash left it
	known  func() []kv.Key
	before []kv.Key // settled before the crash
}

type undo struct {
	file   string
	offset int64
	was    []byte
}

// lateWrites is how many writes a power cut may undo.
const lateWrites = 24

func newCrasher(t *testing.T, dir string, at int, power bool, known func() []kv.Key) *crasher {
	c := &crasher{interceptor: newInterceptor(), t: t, dir: dir, at: at, power: power, known: known, rng: rand.New(rand.NewPCG(uint64(at), 3))}
	c.intercept(c.with)
	return c
}

func (c *crasher) Open(f *os.File) (transfer.File, error) {
	file, err := c.interceptor.Engine.Open(f)
	return named{file, f.Name()}, err
}

// named is a file with its name.
type named struct {
	transfer.File
	name string
}

func (c *crasher) with(op transfer.Op, _ func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	file := op.File.(named)
	op.File = file.File
	if !op.Write {
		c.Engine.Do(context.Background(), []transfer.Op{op})
		return
	}
	if c.at--; c.at < 0 {
		op.Done(0, context.Canceled)
		return
	}
	was := make([]byte, len(op.Buf))
	if f, err := os.Open(file.name); err == nil {
		_, _ = f.ReadAt(was, op.Offset)
		f.Close()
	}
	if c.at > 0 {
		if c.late = append(c.late, undo{file.name, op.Offset, was}); len(c.late) > lateWrites {
			c.late = c.late[1:]
		}
		done, written := op.Done, make(chan struct{})
		op.Done = func(n int, err error) { done(n, err); close(written) }
		c.Engine.Do(context.Background(), []transfer.Op{op})
		<-written
		return
	}
	// The torn one: some of it is written.
	put(c.t, file.name, op.Offset, op.Buf[:c.rng.IntN(len(op.Buf))])
	c.before = c.known()
	c.left = snapshot(c.t, c.dir)
	if c.power {
		for _, u := range c.late {
			from := c.rng.IntN(2 * len(u.was)) // half of them lose nothing
			if from < len(u.was) {
				put(c.t, strings.Replace(u.file, c.dir, c.left, 1), u.offset+int64(from), u.was[from:])
			}
		}
	}
	op.Done(0, context.Canceled)
}

func (c *crasher) crashed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.left != ""
}

// crash runs a store into a crash at its n-th write. Every third block is never
// finished. Before a kill it is begun; where segments are to be recycled fast, before a
// power cut and with hot blocks, it is not even begun. Hot blocks are saved first and
// loaded all the time. It returns the crash, and how many blocks were begun.
func crash(t *testing.T, n int, power bool, o Options, hot ...kv.Key) (c *crasher, begun int) {
	var mu sync.Mutex
	var confirmed []kv.Key
	c = newCrasher(t, o.Dir, n, power, func() []kv.Key {
		mu.Lock()
		defer mu.Unlock()
		return append([]kv.Key(nil), confirmed...)
	})
	o.Engine = c
	s := open(t, o)
	if len(hot) > 0 {
		save(t, s, hot...)
	}
	for !c.crashed() {
		keys := keysOf(begun, 2)
		begun += 3
		shards := shardsOf(small, keys...)
		if !power && len(hot) == 0 {
			shards = append(shards, shardsOf(small, keyOf(begun-1))[:2]...)
		}
		task := beginSave(t, s, shards)
		<-task.Done()
		if c.crashed() {
			break
		}
		if err := task.Err(); err != nil {
			t.Fatal(err)
		}
		if len(hot) > 0 {
			load(t, s, hot...)
			waitReady(t, s)
		}
		mu.Lock()
		confirmed = append(confirmed, keys...)
		mu.Unlock()
	}
	s.Close()
	return c, begun
}

// A process is killed at any write: every block whose save was settled is there, and any
// other only if it is whole.
func TestKilledAtAnyWrite(t *testing.T) {
	step := 1
	if testing.Short() {
		step = 7
	}
	for n := 1; n < 160; n += step {
		o := options(t.TempDir(), small, 9, 12)
		c, begun := crash(t, n, false, o)
		o.Dir = c.left
		s := open(t, o)
		if len(c.before) > 0 {
			loads(t, s, c.before...)
		}
		checkRest(t, s, begun)
		s.Close()
	}
}

// A process is killed at any write while blocks that are hot are carried from segment to
// segment: each is whole in one of them. No store is opened to look: it would recycle the
// segment that was being recycled, and would not know which blocks are hot.
func TestKilledWhileCarrying(t *testing.T) {
	step := 5
	if testing.Short() {
		step = 29
	}
	hot := keysOf(8000, 3)
	for n := 2*len(hot) + 1; n < 300; n += step {
		o := options(t.TempDir(), small, 4, 6)
		o.CarryFraction = maxCarry
		c, _ := crash(t, n, false, o, hot...)
		whole := map[kv.Key]bool{}
		_, all := blocksIn(t, c.left)
		for _, w := range all {
			if slices.Contains(hot, w.head.Key) && w.right(t) {
				whole[w.head.Key] = true
			}
		}
		for i, key := range hot {
			if !whole[key] {
				t.Fatalf("killed at write %d: hot block %d is gone", n, i)
			}
		}
	}
}

// The power fails at any write, and some of the writes before it are lost or torn, while
// segments are recycled all the time: what is there is right.
func TestPowerCutAtAnyWrite(t *testing.T) {
	step := 3
	if testing.Short() {
		step = 19
	}
	for n := 100; n < 300; n += step {
		o := options(t.TempDir(), small, 4, 6)
		c, begun := crash(t, n, true, o)
		o.Dir = c.left
		s := open(t, o)
		checkRest(t, s, begun)
		save(t, s, keysOf(5000, 10)...)
		loads(t, s, keysOf(5000, 10)...)
		s.Close()
	}
}

// In a power cut headers are lost, but not the index of a segment whose generation one
// of them began. That generation is not given again: the next one's blocks would be
// looked for in that index.
func TestGenerationIsNotGivenTwice(t *testing.T) {
	const segments, slots = 4, 4
	for name, saves := range map[string]struct{ before, after int }{
		"some headers of a process": {(segments - 1) * slots, segments * slots},
		"all of them":               {0, slots},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t.TempDir(), small, segments, slots)
			s := open(t, o)
			for i := range saves.before {
				save(t, s, keyOf(i))
				waitReady(t, s)
			}
			headers := map[string][]byte{}
			for _, seg := range s.segments {
				raw, err := os.ReadFile(seg.file.Name())
				if err != nil {
					t.Fatal(err)
				}
				if saves.before == 0 {
					clear(raw) // the ready segment's was there before the first save
				}
				headers[filepath.Base(seg.file.Name())] = raw[:pageBytes]
			}
			for i := range saves.after {
				save(t, s, keyOf(100+i))
				waitReady(t, s)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			for name, header := range headers {
				put(t, filepath.Join(o.Dir, name), 0, header)
			}
			s = open(t, o)
			save(t, s, keysOf(200, slots-1)...)
			o.Dir = snapshot(t, o.Dir)
			loads(t, open(t, o), keysOf(200, slots-1)...)
		})
	}
}

// checkRest loads every block that was begun: right or a miss, and those that were
// never finished are not even found.
func checkRest(t *testing.T, s *Store, begun int) {
	t.Helper()
	load(t, s, keysOf(0, begun)...)
	for i, f := range found(t, s, keysOf(0, begun)...) {
		if f && i%3 == 2 {
			t.Fatalf("block %d was never finished, and is found", i)
		}
	}
}

const killedDir = "SEGMENT_TEST_KILLED_DIR"

func killedOptions(dir string) Options { return options(dir, small, 12, 64) }

// TestKilled is the process that is killed: it saves blocks forever and prints which are
// flushed.
func TestKilled(t *testing.T) {
	dir := os.Getenv(killedDir)
	if dir == "" {
		t.Skip("TestKill runs this")
	}
	first, _ := strconv.Atoi(os.Getenv(killedDir + "_FIRST"))
	s := open(t, killedOptions(dir))
	for n := first; ; n += 4 {
		save(t, s, keysOf(n, 3)...)
		if err := beginSave(t, s, shardsOf(small, keyOf(n+3))[1:]).Wait(context.Background()); err != nil {
			t.Fatal(err)
		}
		if err := s.Flush(context.Background()); err != nil {
			t.Fatal(err)
		}
		fmt.Printf("flushed %d\n", n)
		// Some time later one of them is deleted; in between another one is hot.
		if old := n - 160; old >= first {
			load(t, s, keyOf(old+82))
			remove(t, s, keyOf(old+2))
			if err := s.Flush(context.Background()); err != nil {
				t.Fatal(err)
			}
			fmt.Printf("deleted %d\n", old+2)
		}
	}
}

// After every kill -9, what was flushed is there unless it was evicted, and what was
// half-written, or deleted before a Flush, is not.
func TestKill(t *testing.T) {
	dir := t.TempDir()
	lives, next := 6, 0
	var flushed []int
	var deleted []kv.Key
	if testing.Short() {
		lives = 2
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for range lives {
		child := exec.Command(os.Args[0], "-test.run=^TestKilled$", "-test.timeout=1m")
		child.Env = append(os.Environ(), killedDir+"="+dir, fmt.Sprintf("%s_FIRST=%d", killedDir, next))
		out, err := child.StdoutPipe()
		if err == nil {
			err = child.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		lines, last, left := bufio.NewScanner(out), -1, 60+rng.IntN(100)
		for lines.Scan() {
			if n, ok := strings.CutPrefix(lines.Text(), "flushed "); ok {
				last, _ = strconv.Atoi(n)
				flushed = append(flushed, last)
				if left--; left == 0 {
					_ = child.Process.Kill()
				}
			}
			if n, ok := strings.CutPrefix(lines.Text(), "deleted "); ok {
				number, _ := strconv.Atoi(n)
				deleted = append(deleted, keyOf(number))
			}
		}
		_ = child.Wait()
		if last < 0 {
			t.Fatal("it stored nothing")
		}
		s := open(t, killedOptions(dir))
		// Three segments may be empty or half empty; of four slots one is a hole; and
		// each process had begun more than it printed.
		held := (12-3)*64/4 - 2*lives
		var whole, halves []kv.Key
		for _, n := range flushed[max(0, len(flushed)-held):] {
			whole = append(whole, keysOf(n, 2)...)
			if !slices.Contains(deleted, keyOf(n+2)) && n+160 > last {
				whole = append(whole, keyOf(n+2)) // no Delete of it was under way
			}
			halves = append(halves, keyOf(n+3))
		}
		loads(t, s, whole...)
		for i, f := range found(t, s, halves...) {
			if f {
				t.Fatalf("half-written block %d of %d is found", i, len(halves))
			}
		}
		if len(deleted) > 0 {
			gone(t, s, deleted...)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		next = (last + 8) / 4 * 4
	}
}
