// The functions of a visit for one kind of storage, of entries of any type.
#pragma once

#include "bind.hpp"
#include "visits.hpp"

namespace drago {

using nb::literals::operator""_a;

template <class Rows>
void require_no_guess(const Rows&, int kind) {
    if (!Rows::guesses && kind != NO_GUESS)
        throw nb::value_error("weights of sparse rows are not guessed at: kind must be 0");
}

// The two functions for one kind of storage, whose arrays come first; `open` makes of them the rows
// of one of the types.
template <class AnyRows, class... Storage, class... Names>
void bind_storage(nb::module_& m, AnyRows (*open)(Storage...), Names... names) {
    m.def(
        "visit",
        [open](Storage... storage, Index n_parts, Index n_threads, InArray w, double b, int code,
               double parameter, InArray y, InArray p, InArray baseline, int kind, double tau,
               double nu, double cap, OutArray raw, OutArray losses, OutArray slopes,
               InArray unit, OutArray reach, OutArray first, OutArray second) {
            require_shares(p, y);
            const nb::gil_scoped_release released;
            const Seen seen{view(y),      view(p),      view(baseline), view(raw),
                            view(losses), view(slopes), view(unit),     view(reach)};
            const auto visit_all = [&](const auto& rows) {
                require_no_guess(rows, kind);
                if (!rows.measures && unit.size() > 0)
                    throw nb::value_error("rows of this kind are not measured: unit must be empty");
                return visit(rows, {seen.y.size, n_parts}, n_threads,
                             {w.data(), b, code, parameter}, {kind, tau, nu, cap}, seen,
                             view(first), view(second));
            };
            const Tally found = std::visit(visit_all, open(storage...));
            return std::make_tuple(found.bad, found.first, found.second);
        },
        names..., "n_parts"_a, "n_threads"_a, "w"_a.noconvert(), "b"_a, "code"_a, "parameter"_a,
        "y"_a.noconvert(), "p"_a.noconvert(), "baseline"_a.noconvert(), "kind"_a, "tau"_a, "nu"_a,
        "cap"_a, "raw"_a.noconvert(), "losses"_a.noconvert(), "slopes"_a.noconvert(),
        "unit"_a.noconvert(), "reach"_a.noconvert(), "first"_a.noconvert(),
        "second"_a.noconvert(),
        "Predictions, losses, slopes, and their sums at guessed weights; how many are not finite,\n"
        "and the sums of both kinds of guessed weights. With units, for dense rows in arrays, also\n"
        "``||unit x||`` of the rows; without, where there is room for it, the norm of X.");
    m.def(
        "gradient_after",
        [open](Storage... storage, Index n_parts, Index n_threads, InArray p, InArray q,
               InArray losses, InArray slopes, int kind, double tau, double nu, double cap,
               double sum_first, double sum_second, InArray first, InArray second, OutArray out) {
            require_shares(p, q);
            const nb::gil_scoped_release released;
            const auto gradient = [&](const auto& rows) {
                require_no_guess(rows, kind);
                gradient_after(rows, {static_cast<Index>(q.size()), n_parts}, n_threads,
                               {kind, tau, nu, cap},
                               {view(p), view(q), view(losses), view(slopes)},
                               {0, sum_first, sum_second}, view(first), view(second), view(out));
            };
            std::visit(gradient, open(storage...));
        },
        names..., "n_parts"_a, "n_threads"_a, "p"_a.noconvert(), "q"_a.noconvert(),
        "losses"_a.noconvert(), "slopes"_a.noconvert(), "kind"_a, "tau"_a, "nu"_a, "cap"_a,
        "sum_first"_a, "sum_second"_a, "first"_a.noconvert(), "second"_a.noconvert(),
        "out"_a.noconvert(),
        "``out = sum of q s x``, after a visit with a guess of the weights q or without one.");
}

}  // namespace drago
