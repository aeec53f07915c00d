package memstore_test

import (
	"testing"

	"github.com/choria-provisioner/provisioner/version/ledger/memstore"
	"github.com/choria-provisioner/provisioner/version/ledger/storetest"
)

type place struct{ memory memstore.Memory }

type store struct {
	*memstore.Store
	place *place
}

func (s store) SetAside() (map[string][]byte, error) { return s.place.memory.SetAside(), nil }

func (p *place) Open(testing.TB) storetest.Store { return store{memstore.Open(&p.memory), p} }

func (p *place) Damage(_ testing.TB, identity string, data []byte) { p.memory.Damage(identity, data) }

func TestStore(t *testing.T) {
	storetest.Run(t, func(testing.TB) storetest.Place { return &place{} })
}
