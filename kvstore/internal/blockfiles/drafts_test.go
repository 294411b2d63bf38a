package blockfiles

import (
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
)

// Who waits for a place gets that of a file that is made meanwhile and that nobody writes to:
// its batch may be the one that waits.
func TestAWaiterGetsThePlaceOfANewFile(t *testing.T) {
	s := openOver(t, Options{Layout: kv.Layout{BlockBytes: 1000, ShardBytes: 500}, Places: 1, Timeout: time.Minute},
		func(e transfer.Engine) transfer.Engine { return e })
	if !s.drafts.try() {
		t.Fatal("no place")
	}
	waited := make(chan error, 1)
	go func() { waited <- s.waitForDraft(t.Context()) }()
	for s.drafts.waiting.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	made, err := s.create(kv.Key{1})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-waited; err != nil {
		t.Error(err)
	} else {
		s.drafts.leave()
	}
	s.drop(made)
}
