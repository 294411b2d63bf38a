package hosts

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// Blocks is a process on a host that has a block store open.
type Blocks struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// Blocks opens the store Posix in a directory of a host, until End.
func (h *Hosts) Blocks(host int, dir string) *Blocks {
	h.t.Helper()
	self, err := os.Executable()
	if err != nil {
		h.t.Fatal(err)
	}
	cmd := exec.Command("../../../scripts/hosts", "exec", strconv.Itoa(host), "env", ringVariable+"=blocks", self, dir)
	cmd.Env, cmd.Stderr, cmd.WaitDelay = h.env, os.Stderr, 5*time.Second
	in, err := cmd.StdinPipe()
	out, bad := cmd.StdoutPipe()
	if err := errors.Join(err, bad, cmd.Start()); err != nil {
		h.t.Fatal(err)
	}
	b := &Blocks{h.t, cmd, in, bufio.NewReader(out)}
	h.t.Cleanup(b.End)
	return b
}

// Do does one thing: "save 1" stores variant 1 of the block, "delete" removes it, "draft" begins a block that is never finished, and "load" answers "variant 1",
// "miss", "corrupt", which is a miss, too, or that it has read what nobody has saved.
func (b *Blocks) Do(what string) string {
	b.t.Helper()
	if _, err := fmt.Fprintln(b.in, what); err != nil {
		b.t.Fatal(what, err)
	}
	said, err := b.out.ReadString('\n')
	if err != nil {
		b.t.Fatal(what, err)
	}
	return strings.TrimSpace(said)
}

// End ends the process.
func (b *Blocks) End() {
	_ = b.in.Close()
	_ = b.cmd.Wait() // a second time, too
}

const (
	blockBytes = 64 << 10
	shardBytes = blockBytes / 2
)

func serveBlocks(dir string) (err error) {
	s, err := kvstore.Open("Posix", kvstore.Config{
		Namespace: keys.Namespace{Model: "kv3fs/test", BlockTokens: 16}, Layout: kvstore.Layout{BlockBytes: blockBytes, ShardBytes: shardBytes},
		Posix: &kvstore.PosixOptions{Dirs: []string{dir}},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		what, number, _ := strings.Cut(lines.Text(), " ")
		fmt.Println(blockAnswer(s, what, number))
	}
	return nil
}

func blockAnswer(s *kvstore.Store, what, number string) string {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	block := []kvstore.Key{{1, 2, 3}}
	memory := make([]byte, blockBytes)
	shards := s.Layout().ByBlock(block, [][]byte{memory})
	var task *kvstore.Task
	var err error
	switch what {
	case "delete":
		err = s.Delete(ctx, block)
	case "draft":
		_, err = s.Save(context.Background(), s.Layout().ByBlock([]kvstore.Key{{9}}, [][]byte{memory})[:1])
	case "save":
		copy(memory, bytes.Repeat([]byte(number), blockBytes/len(number)))
		task, err = s.Save(ctx, shards)
	case "load":
		task, err = s.Load(ctx, shards)
	}
	if task != nil {
		err = task.Wait(ctx)
	}
	if what == "save" {
		err = errors.Join(err, s.Flush(ctx))
	}
	switch {
	case errors.Is(err, kvstore.ErrCorrupt):
		return "corrupt"
	case errors.Is(err, kvstore.ErrMiss):
		return "miss"
	case err != nil:
		return strings.ReplaceAll(err.Error(), "\n", " ")
	case what != "load":
		return "ok"
	case !bytes.Equal(memory, bytes.Repeat(memory[:1], blockBytes)):
		return "bytes that nobody has saved"
	}
	return "variant " + string(memory[:1])
}
