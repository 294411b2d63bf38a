package etcdlog

// checkpoint follows a batch that names a host. Every follower notes the hash of its state there; that host takes a snapshot, too, and
// proposes it to the leader.
func (f *follower) checkpoint(host string) error {
	p := &f.position
	m := mile{bytes: p.bytes}
	if f.owner.Whole() && p.joiner.next == 0 {
		m.state = f.owner.StateHash()
	}
	p.at[p.index] = m
	f.setState(func(s *State) { s.checkpoint = point{p.index, m.state} })
	for index := range p.at {
		if len(p.at) > keptMiles && index < p.index && !f.names(index) {
			delete(p.at, index)
		}
	}
	if host != f.by.Host || m.state == 0 {
		return nil
	}
	if n := f.refs.Newest; len(n) > 0 && n[0].Index >= p.index {
		return nil // the leader has one, from here or from later
	}
	h := &snapshotHeader{by: f.by, cluster: f.cluster.ID(), index: p.index, chain: p.chain, state: m.state}
	r, err := writeSnapshot(f.snapshotDir(), h, f.owner.Snapshot)
	r.Epoch = p.epoch
	if err == nil {
		err = f.propose(r)
	}
	if err != nil {
		f.o.Logger.Error("page log: a snapshot failed", "index", p.index, "err", err)
		return nil // the leader will ask another host
	}
	f.o.Logger.Info("page log: snapshot taken", "index", p.index, "bytes", r.Bytes)
	return nil
}

// keptMiles is for how many checkpoints a state hash is kept.
const keptMiles = 8

// names reports whether etcd names a snapshot at an index.
func (f *follower) names(index uint64) bool {
	for _, r := range f.refs.Newest {
		if r.Index == index {
			return true
		}
	}
	return false
}

// propose tells the leader of a snapshot.
func (f *follower) propose(r reference) error {
	once, cancel := f.call(f.ctx)
	defer cancel()
	_, err := f.cluster.Client().Put(once, f.keys.proposal(f.by.Host), encodeJSON(proposal{stamp{jsonFormat, f.by}, r}))
	return err
}

// compare returns an error if another host had another state than this one at the same place of the log. Then this host
// begins again, from that host's snapshot.
func (f *follower) compare() error {
	for _, r := range f.refs.Newest {
		m, ok := f.position.at[r.Index]
		if ok && m.state != 0 && r.Version == f.by.Version && r.Epoch == f.position.epoch && m.state != r.State {
			return damaged("at batch %d this host has state %x, and host %q, which took the snapshot, has %x: this host begins again from the snapshot", r.Index, m.state, r.Host, r.State)
		}
	}
	return nil
}
