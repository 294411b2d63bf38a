package index

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

func TestOnlyOneProcessHasTheFile(t *testing.T) {
	dir := t.TempDir()
	b, err := open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	_, err = open(dir, Options{})
	if err == nil || !strings.Contains(err.Error(), "process "+strconv.Itoa(os.Getpid())) {
		t.Fatal(err)
	}
}

func TestAClosedIndexReturnsErrClosed(t *testing.T) {
	b, err := open(t.TempDir(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Stat(context.Background()); !errors.Is(err, pageservice.ErrClosed) {
		t.Fatal(err)
	}
	if _, err := b.Initialize(context.Background(), modelSpace, 0, pageservice.RankOptions{NumPages: 1}); !errors.Is(err, pageservice.ErrClosed) {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal("a second time:", err)
	}
}
