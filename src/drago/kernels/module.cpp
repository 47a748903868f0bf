// One extension for each level of the processor's instructions. This file is compiled for all
// processors: it refuses one that lacks the instructions of the others.
#include "bind.hpp"
#include "level.hpp"

// Once more through a macro, so that the name is put in before it is pasted together.
#define DRAGO_INIT(name, m) NB_MODULE(name, m)

DRAGO_INIT(DRAGO_MODULE, m) {
    if (!drago::is_supported()) throw nb::import_error("made for another processor");
    drago::bind_classes(m);
    drago::bind_files(m);
    drago::bind_oracles(m);
    drago::bind_rows(m);
    drago::bind_steps(m);
    drago::bind_stochastic(m);
    drago::bind_visits(m);
}
