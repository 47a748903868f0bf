"""The one judge: certificates, their bounds, and the Hessian that they need."""
