package daemon

import (
	"context"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/kv3fs/kv3fs/internal/fs/integrity"
	"github.com/kv3fs/kv3fs/internal/fs/tree"
	"github.com/kv3fs/kv3fs/internal/layout/classify"
	"github.com/kv3fs/kv3fs/internal/layout/kv3fs"
)

// sumsDir is the directory of checksums in tree.StateName.
const sumsDir = "sums"

// newChecksums returns the checksums of a data directory, or nil if none are to be kept or can be.
func newChecksums(data string, on, shared, readonly bool, log *slog.Logger) *integrity.Store {
	if !on {
		return nil
	}
	why := integrity.Supported(data)
	if shared && why == "" {
		why = "other hosts may change its files, and this one would not hear of it" // a disk that this host exports, say
	}
	if why != "" {
		log.Info("no checksums are kept of the data directory", "data", data, "why", why)
		return nil
	}
	sums, err := integrity.Open(integrity.Options{Files: data, Dir: filepath.Join(data, tree.StateName, sumsDir), Readonly: readonly, Log: log})
	if err != nil { // a full disk, or a damaged one: clients are served without checksums
		log.Warn("no checksums are kept until a restart: what they are kept in cannot be opened; make room, or remove that directory", "data", data, "err", err)
	}
	return sums
}

// aside returns how the files of a damaged entry are renamed: entries of a known layout that others may remove, and nothing
// else.
func aside(path string) (files []tree.Aside) {
	f := classify.Classify(path, classify.Context{})
	if !f.Delete.Evictable() || f.Temp {
		return nil
	}
	if _, already := kv3fs.IsAside(filepath.Base(path)); already {
		return nil
	}
	for _, part := range f.Parts() {
		name, ok := kv3fs.AsideName(filepath.Base(part), time.Now().Unix())
		if !ok {
			return nil
		}
		files = append(files, tree.Aside{Path: part, Name: name})
	}
	return files
}

// startChecksums saves checksums until stop is called.
func startChecksums(sums *integrity.Store) (stop func()) {
	if sums == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		sums.Run(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}
