package etcdlog

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// ErrNewer: a newer kv3fs has written what this one cannot read. It is an ErrCorrupt, too: this
// host must not lead.
var ErrNewer = fmt.Errorf("%w: written by a newer kv3fs", pageservice.ErrCorrupt)

// writer says which host wrote something, with which version of kv3fs.
type writer struct {
	Host    string `json:"host"`
	Version string `json:"version"`
}

// newer returns the error for a format that this version does not know.
func (by writer) newer(what string, format, known uint64) error {
	return fmt.Errorf("%w: %s has format %d, and this kv3fs knows formats up to %d; host %q wrote it with kv3fs %s: upgrade this host",
		ErrNewer, what, format, known, by.Host, by.Version)
}

// maxName bounds the names of hosts and versions.
const maxName = 255

var errMalformed = errors.New("malformed")

// A preamble begins whatever is not JSON. All later formats will have it, so that an older
// kv3fs can say who wrote what it cannot read.

func appendPreamble(b []byte, magic string, format uint16, by writer) []byte {
	b = append(b, magic...)
	b = binary.LittleEndian.AppendUint16(b, format)
	for _, s := range []string{by.Host, by.Version} {
		s = s[:min(len(s), maxName)]
		b = append(append(b, byte(len(s))), s...)
	}
	return b
}

// preamble reads what appendPreamble wrote, and refuses formats other than the known one.
func (d *decoder) preamble(what, magic string, known uint16) (by writer, err error) {
	if string(d.take(len(magic))) != magic {
		return by, errMalformed
	}
	format := d.uint16()
	by.Host = string(d.take(int(d.byte())))
	by.Version = string(d.take(int(d.byte())))
	switch {
	case d.bad, format == 0:
		return by, errMalformed
	case format > known:
		return by, by.newer(what, uint64(format), uint64(known))
	}
	return by, nil
}
