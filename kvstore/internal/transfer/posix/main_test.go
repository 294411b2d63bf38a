package posix

import (
	"fmt"
	"os"
	"testing"

	"github.com/hanwen/go-fuse/v2/splice"

	"github.com/kv3fs/kv3fs/internal/test/leaktest"
)

func TestMain(m *testing.M) {
	// go-fuse, which mounts a file system that hangs, keeps a pipe for the life of the
	// process. It is made here, so that it does not look like a leak.
	pipe, err := splice.Get()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	splice.Done(pipe)
	os.Exit(leaktest.Main(m))
}
