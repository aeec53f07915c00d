package helper

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/choria-provisioner/provisioner/helper/helperv1"
)

// Redacted stands where a secret text was.
const Redacted = "***"

// Redact returns a copy of a message of the contract that may be logged: a text
// marked as secret is replaced by Redacted, any other secret field is removed.
func Redact(m proto.Message) proto.Message {
	c := proto.Clone(m)
	redact(c.ProtoReflect())
	return c
}

func redact(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case isSecret(f) && f.Kind() == protoreflect.StringKind && f.Cardinality() != protoreflect.Repeated:
			m.Set(f, protoreflect.ValueOfString(Redacted))
		case isSecret(f):
			m.Clear(f)
		case f.IsMap():
			if f.MapValue().Message() != nil {
				v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
					redact(v.Message())
					return true
				})
			}
		case f.Message() == nil:
		case f.IsList():
			for i := range v.List().Len() {
				redact(v.List().Get(i).Message())
			}
		default:
			redact(v.Message())
		}

		return true
	})
}

func isSecret(f protoreflect.FieldDescriptor) bool {
	secret, _ := proto.GetExtension(f.Options(), helperv1.E_Secret).(bool)
	return secret
}
