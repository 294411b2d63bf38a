package kvstore

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/objects"
)

// A Backend is where a store of a program's own keeps its bytes: a service, a data base, a
// file system of another kind. It keeps objects, each under a name, and knows nothing of
// blocks: identity, checksums, shards that come in several batches, and writers that
// differ are the chain's part. [Registry] makes a store of it.
//
// An object has 4096 bytes more than a block. Names consist of lower-case hexadecimal
// digits and one slash: the namespace's fingerprint, then the key.
//
// # Contract
//
// Any number of goroutines call any method at once, except that Close is called once, and
// when no other call is under way.
//
// The slices of an argument are the backend's until the method returns, and no longer. It
// writes only to found and to buf.
//
// A method returns soon after its context has ended, with the context's error. One that
// does not return within [Config.Timeout] fails with [ErrTimeout], and the buffer that it
// was given is abandoned: see [ErrAbandoned].
//
// An object may be gone at any time; that is a miss. What Get returns for a name is what
// one Put was given. The chain notices if it is not: such an object is damaged, counted
// and deleted, and the load is a miss. A panic is an error of the call. So no mistake of a
// backend makes a load return wrong bytes.
//
// What Put has stored survives as far as the backend says; the chain adds nothing to it.
type Backend interface {
	// Has sets found[i] to whether there is an object names[i].
	Has(ctx context.Context, names []string, found []bool) error

	// Get fills buf with the bytes of an object from off on. [ErrMiss] or an
	// fs.ErrNotExist means that there is no such object, or that it ends before.
	Get(ctx context.Context, name string, off int64, buf []byte) error

	// Put stores an object, in place of one that has the name. Others see it whole or not
	// at all, also while two calls put different bytes: one of them wins. After an error it
	// may be there or not. [ErrFull] means that there is no space.
	Put(ctx context.Context, name string, object []byte) error

	// Delete removes objects. A name that does not exist is no error. After it has returned
	// nil, Has finds none of them until they are put again.
	Delete(ctx context.Context, names []string) error

	// List yields the names that begin with a prefix, in any order, and nothing after an
	// error. Objects that come or go meanwhile may be among them or not.
	List(ctx context.Context, prefix string) iter.Seq2[string, error]

	// Close releases everything.
	Close() error
}

// registered opens a registered store.
func (b *builder) registered(name string) (kv.Store, error) {
	backend, err := b.openBackend(name)
	if err != nil {
		return nil, err
	}
	o := objects.Options{Name: name, Layout: b.layout(), Namespace: b.namespace, Timeout: b.Timeout, Checksums: b.checksums()}
	if b.Registered != nil {
		o.UnfinishedBytes = b.Registered.UnfinishedBytes
	}
	return objects.New(backend, o), nil
}

// openBackend calls the function of the program.
func (b *builder) openBackend(name string) (backend Backend, err error) {
	defer func() {
		if p := recover(); p != nil {
			backend, err = nil, fmt.Errorf("kvstore: open the backend: panic: %v", p)
		}
	}()
	backend, err = b.registry.opener(name)(b.Config)
	if backend == nil && err == nil {
		err = errors.New("kvstore: open the backend: the function that was registered returned none, and no error")
	}
	return backend, err
}
