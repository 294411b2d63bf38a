package index

import (
	"context"
	"errors"
	"testing"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/journal"
)

// The slices of a request are reused when its caller is gone. A confirmation that is
// still being logged then must not release the page of another writer.
func TestAConfirmationWhoseCallerIsGoneReleasesNoOtherPage(t *testing.T) {
	entered, gate := make(chan struct{}), make(chan struct{})
	block := false
	b, err := openWith(t.TempDir(), journal.Options{Commit: func(commit func() error) error {
		if block {
			entered <- struct{}{}
			<-gate
		}
		return commit()
	}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if _, err := b.Initialize(ctx, modelSpace, 0, pageservice.RankOptions{NumPages: 8}); err != nil {
		t.Fatal(err)
	}
	g, err := b.Reserve(ctx, modelSpace, 0, []string{"a", "bad", "live"}, true)
	if err != nil {
		t.Fatal(err)
	}
	release := []int64{g[1].Page}
	gone, leave := context.WithCancel(ctx)
	done := make(chan error)
	block = true
	go func() {
		_, err := b.Confirm(gone, modelSpace, 0, []pageservice.Placed{{Key: "a", Page: g[0].Page}}, release)
		done <- err
	}()
	<-entered
	leave()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	release[0] = g[2].Page
	block = false
	close(gate)
	if err := b.log.Append(func(error) {})(ctx); err != nil {
		t.Fatal(err)
	}
	c, err := b.Confirm(ctx, modelSpace, 0, nil, []int64{g[1].Page})
	if err != nil || c != (pageservice.Confirmed{Ignored: 1}) {
		t.Fatalf("%+v %v, want a page that is already released", c, err)
	}
}
