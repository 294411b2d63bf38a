package journal

import (
	"errors"
	"runtime"
	"testing"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// A journal that is closed while it is being read reads no further, and holds nothing.
func TestCloseDuringStart(t *testing.T) {
	dir := t.TempDir()
	j, _ := openFor(t, dir, Options{}, pageservice.LogOwner{LiveBytes: func() int64 { return 0 }})
	if err := writeAll(j, "a", "b", "c"); err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}

	j = New(dir, Options{})
	read, closed := 0, make(chan error, 1)
	err := j.Start(pageservice.LogOwner{
		Replay: func([]byte) error {
			read++
			go func() { closed <- j.Close() }()
			for !j.queue.Closed() {
				runtime.Gosched()
			}
			return nil
		},
		Missing:  func(string) {},
		Replayed: func() error { return nil },
	})
	if !errors.Is(err, pageservice.ErrClosed) || errors.Is(err, pageservice.ErrCorrupt) || read != 1 {
		t.Fatalf("%v after %d records", err, read)
	}
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	if err := j.Start(pageservice.LogOwner{}); !errors.Is(err, pageservice.ErrClosed) {
		t.Fatal(err)
	}
	_, recs := openFor(t, dir, Options{}, pageservice.LogOwner{LiveBytes: func() int64 { return 0 }})
	if len(recs) != 3 {
		t.Fatal(recs)
	}
}
