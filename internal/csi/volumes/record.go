package volumes

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Record is a published volume: what is bound where, and for whom.
type Record struct {
	Volume       string `json:"volume"`
	Target       string `json:"target"`
	SubDirectory string `json:"sub_directory"` // below the mount; ".": all of it
	QuotaBytes   int64  `json:"quota_bytes,omitempty"`
	Pages        string `json:"pages,omitempty"` // page namespace
	ReadOnly     bool   `json:"read_only,omitempty"`
	Group        string `json:"group,omitempty"` // the pod's fsGroup, as a number
	Namespace    string `json:"namespace,omitempty"`
	Pod          string `json:"pod,omitempty"`
	// Adopted marks a volume whose record was lost: mount table and kubelet told all that it says.
	Adopted bool `json:"adopted,omitempty"`
}

// same reports whether a request is for what a record says. Of an adopted one less is known.
func (r Record) same(asked Record) bool {
	if r.Adopted {
		return r.Volume == asked.Volume && r.SubDirectory == asked.SubDirectory && r.ReadOnly == asked.ReadOnly && r.Pages == asked.Pages
	}
	return r == asked
}

// ledger keeps records in a directory, a file each, which is replaced as a whole and names its own sum: a file that was torn, or
// edited, is not believed.
type ledger struct{ dir string }

const (
	recordSuffix = ".json"
	tornSuffix   = ".torn"
	// mostRecordBytes is more than a record can have.
	mostRecordBytes = 64 << 10
)

// recordFile is a file's content. SHA256 is of Record as it stands there.
type recordFile struct {
	Format int             `json:"format"`
	SHA256 string          `json:"sha256"`
	Record json.RawMessage `json:"record"`
}

const recordFormat = 1

func (l ledger) path(target string) string {
	sum := sha256.Sum256([]byte(target))
	return filepath.Join(l.dir, hex.EncodeToString(sum[:16])+recordSuffix)
}

func encodeRecord(r Record) ([]byte, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	return json.Marshal(recordFile{recordFormat, hex.EncodeToString(sum[:]), text})
}

// decodeRecord is the inverse of encodeRecord.
func decodeRecord(text []byte) (r Record, err error) {
	var f recordFile
	if err := json.Unmarshal(text, &f); err != nil {
		return r, err
	}
	if f.Format != recordFormat {
		return r, fmt.Errorf("it is of format %d; this version knows %d", f.Format, recordFormat)
	}
	if sum := sha256.Sum256(f.Record); f.SHA256 != hex.EncodeToString(sum[:]) {
		return r, errors.New("its checksum does not match")
	}
	if err := json.Unmarshal(f.Record, &r); err != nil {
		return r, err
	}
	if !filepath.IsAbs(r.Target) || !inside(r.SubDirectory) {
		return r, fmt.Errorf("it names target %q and sub-directory %q", r.Target, r.SubDirectory)
	}
	return r, nil
}

// save replaces or makes a record's file. It is on the disk once save returns.
func (l ledger) save(r Record) error {
	text, err := encodeRecord(r)
	if err != nil {
		return err
	}
	path := l.path(r.Target)
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	return l.sync()
}

// remove ends the record of a target, if there is one.
func (l ledger) remove(target string) error {
	if err := os.Remove(l.path(target)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return l.sync()
}

func (l ledger) sync() error {
	d, err := os.Open(l.dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// load reads all records. What cannot be believed is set aside under another name, and told.
func (l ledger) load(torn func(file string, why error)) (map[string]Record, error) {
	entries, err := os.ReadDir(l.dir)
	if err != nil {
		return nil, err
	}
	all := map[string]Record{}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), recordSuffix) {
			continue
		}
		path := filepath.Join(l.dir, e.Name())
		r, err := readRecord(path)
		if err == nil && l.path(r.Target) != path {
			err = fmt.Errorf("it is the record of %q", r.Target)
		}
		if err != nil {
			aside := strings.TrimSuffix(path, recordSuffix) + tornSuffix
			torn(aside, errors.Join(err, os.Rename(path, aside)))
			continue
		}
		all[r.Target] = r
	}
	return all, nil
}

func readRecord(path string) (r Record, err error) {
	text, err := readRegular(path, mostRecordBytes)
	if err != nil {
		return r, err
	}
	return decodeRecord(text)
}
