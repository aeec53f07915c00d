package simfleet

import "strings"

// inventoryFaults are in what inventory answers.
func inventoryFaults() []Fault {
	// text is an inventory that need not be JSON
	text := func(data string) func(*Broker, *NodeOptions) error {
		return always(actionInventory, Override{Body: []byte(`{"statuscode":0,"statusmsg":"OK","data":` + data + `}`)})
	}
	// big ones are not made before somebody wants them
	nested := func(levels int) func(*Broker, *NodeOptions) error {
		return func(b *Broker, o *NodeOptions) error {
			return text(`{"version":"0.30.2","facts":`+strings.Repeat(`{"a":`, levels)+"1"+strings.Repeat("}", levels)+"}")(b, o)
		}
	}
	large := func(bytes int) func(*Broker, *NodeOptions) error {
		return func(b *Broker, o *NodeOptions) error {
			return text(`{"version":"0.30.2","facts":{"large":"`+strings.Repeat("x", bytes)+`"}}`)(b, o)
		}
	}

	return []Fault{
		{Name: "inventory-large", About: "200 KiB of facts, as honest nodes have", Apply: large(200 << 10)},
		{Name: "inventory-huge", About: "3 MiB of facts, which the broker takes from nobody", Apply: large(3 << 20)},
		{Name: "inventory-nested", About: "facts of 100 levels", Apply: nested(100)},
		{Name: "inventory-deep", About: "facts of 10,000 levels", Apply: nested(10_000)},
		{Name: "inventory-wrong-types", About: "an inventory with a number for a version and a list of facts", Apply: text(`{"version":1,"facts":[1,2],"upgradable":"yes"}`)},
		{Name: "inventory-facts-list", About: "an inventory with a list of facts", Apply: text(`{"version":"0.30.2","facts":[1,2]}`)},
		{Name: "inventory-no-version", About: "an inventory of an old agent, without a version", Apply: text(`{"facts":{}}`)},
		{Name: "inventory-no-facts", About: "an inventory without facts", Apply: text(`{"version":"0.30.2","facts":null}`)},
		{Name: "inventory-list", About: "an inventory that is a list", Apply: text(`[1,2,3]`)},
		{Name: "inventory-null", About: "an inventory that is null", Apply: text(`null`)},
		{Name: "inventory-junk", About: "an inventory that is no JSON", Apply: text(`junk`)},
		{Name: "inventory-not-utf8", About: "facts that are no UTF-8", Apply: text("{\"version\":\"0.30.2\",\"facts\":{\"a\":\"\xff\xfe\"}}")},
	}
}
