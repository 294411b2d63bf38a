package hosts

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/kv3fs/kv3fs/kvstore"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// Blocks opens the block store Posix in a directory of a host, until the process ends. Asked "save 1", it stores variant 1 of the block, "delete" removes it,
// "draft" begins a block that is never finished, and "load" answers "variant 1", "miss", "corrupt", which is a miss, too, or that it has read what nobody has saved.
func (h *Hosts) Blocks(host int, dir string) *Process {
	h.t.Helper()
	return h.begin(host, "blocks", dir)
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
