// Iterations of SGD, LSVRG and Prospect on rows of a dense or a CSR matrix.
//
// Coefficients and gradients are flat, as the rows want them: one output after the other for a
// dense matrix, one feature after the other for a sparse one. The coefficients w and the intercept
// b are changed in place.
//
// The variance-reduced steps move all coordinates, w <- r w - eta (g + change x_i) with
// r = 1 - eta mu. On sparse rows a coordinate is only brought up to date when a row needs it: while
// no row does, its g is constant, and m steps are w <- r^m w - eta (1 + ... + r^(m-1)) g.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "dual_balls.hpp"
#include "dual_capped.hpp"
#include "dual_spectral.hpp"
#include "losses.hpp"
#include "stochastic_rows.hpp"
#include "views.hpp"

namespace drago {

// `DualOracle.family` and `Divergence.code`.
enum SetFamily { CAPPED, BALL, SPECTRAL };
enum DivergenceCode { CHI2, KL };
// A factor of w that is kept apart is multiplied in before it leaves this range.
inline constexpr double smallest_scale = 1e-50;

// An uncertainty set.
struct SetCodes {
    int family, divergence;
    double parameter;
};

// Targets are numbers, or labels where the loss has several outputs.
struct RowLoss {
    In y;
    Vec<const std::int64_t> labels;
    int code;
    double parameter;
    In baseline;

    Index size() const { return labels.empty() ? y.size : labels.size; }

    // Loss (without the baseline) and slopes of one row.
    double operator()(Index i, Index k, const double* raw, double* slopes) const {
        if (code == MULTINOMIAL) {
            const Index label =
                static_cast<Index>(labels.empty() ? static_cast<std::int64_t>(y[i]) : labels[i]);
            return one_multinomial(label, k, raw, slopes);
        }
        const double target = labels.empty() ? y[i] : static_cast<double>(labels[i]);
        const LossSlope here = one_single_output(code, parameter, target, raw[0]);
        slopes[0] = here.slope;
        return here.loss;
    }

    double less_baseline(Index i, double loss) const {
        return baseline.empty() ? loss : loss - baseline[i];
    }
};

// Room for the weights of a spectral set on up to `size` rows.
struct SpectralRoom {
    std::vector<std::int64_t> order, first;
    Scratch sorted, ratio, one, two;

    explicit SpectralRoom(Index size)
        : order(static_cast<std::size_t>(size)),
          first(static_cast<std::size_t>(size + 1)),
          sorted(static_cast<std::size_t>(size)),
          ratio(static_cast<std::size_t>(size)),
          one(static_cast<std::size_t>(size)),
          two(static_cast<std::size_t>(size)) {}

    // Sort the values.
    void sort(In u) {
        const Vec<std::int64_t> places(order.data(), u.size);
        sort_places(u, places);
        for (Index place = 0; place < u.size; ++place) sorted[place] = u[places[place]];
    }

    // The weights of these ratios, in the order of the rows.
    void scatter_to(In p, Out q) const {
        scatter({ratio.data(), p.size}, p, {order.data(), p.size}, q);
    }

    // Ratios q / p, in the order of the losses.
    void sweep(int divergence, In p, In sigma, double nu) {
        const Index m = p.size;
        const In u(sorted.data(), m);
        const Out out(ratio.data(), m), a(one.data(), m), b(two.data(), m);
        const Vec<std::int64_t> pools(first.data(), m + 1);
        if (nu == 0.0) {
            spectral_vertex(u, p, sigma, out, pools);
        } else if (divergence == CHI2) {
            spectral_chi2(u, p, sigma, nu, out, a, b, pools);
        } else {
            spectral_kl(u, p, sigma, nu, out, a, Out(), pools);
        }
    }
};

// argmax <u, q> - nu D(q || p) on a batch; `memory` is where the next search starts.
inline double batch_weights(const SetCodes& set, In sigma, In u, In p, double nu, double memory,
                            SpectralRoom& room, Out q) {
    if (set.family == CAPPED) {
        if (set.divergence == CHI2) return capped_chi2(u, p, nu, set.parameter, memory, q);
        return capped_kl(u, p, nu, set.parameter, memory, q, Out());
    }
    if (set.family == BALL) {
        if (set.divergence == CHI2) return chi2_ball(u, p, nu, set.parameter, memory, q).memory;
        return kl_ball(u, p, nu, set.parameter, memory, q, Out()).memory;
    }
    room.sort(u);
    room.sweep(set.divergence, p, sigma, nu);
    room.scatter_to(p, q);
    return memory;
}

// Minibatch steps along the rows of `order`; returns the mean of the batches' robust loss.
//
// On a batch B, q = argmax <l_B(w), q> - nu D(q || 1/|B|), and
// w <- w - eta (sum_B q_i grad l_i(w) + mu w). The last batch may be short; `sigma` and
// `short_sigma` are the spectra of a whole and of that one.
template <class Rows>
double sgd(const Rows& rows, const RowLoss& loss, const SetCodes& set, In sigma, In short_sigma,
           Out w, Out b, Vec<const std::int64_t> order, Index batch_size, double eta, double mu,
           double nu, bool fit_intercept) {
    const Index k = b.size, n = order.size;
    Scratch room(static_cast<std::size_t>(batch_size * (3 + k) + 2 * k));
    const Out losses(room.data(), batch_size), q(losses.data + batch_size, batch_size);
    const Out nominal(q.data + batch_size, batch_size);
    double *slopes = nominal.data + batch_size, *raw = slopes + batch_size * k, *weights = raw + k;
    SpectralRoom spectral(set.family == SPECTRAL ? batch_size : 0);
    std::fill(nominal.data, nominal.data + batch_size, 1.0 / static_cast<double>(batch_size));
    const double shrink = 1.0 - eta * mu;
    double memory = nan, scale = 1.0, total = 0.0;
    for (Index begin = 0; begin < n; begin += batch_size) {
        const Index m = std::min(batch_size, n - begin);
        if (m < batch_size) {
            std::fill(nominal.data, nominal.data + m, 1.0 / static_cast<double>(m));
            memory = nan;
        }
        for (Index r = 0; r < m; ++r) {
            const Index i = static_cast<Index>(order[begin + r]);
            rows.predict(i, k, w.data, raw);
            for (Index c = 0; c < k; ++c) raw[c] = raw[c] * scale + b[c];
            losses[r] = loss.less_baseline(i, loss(i, k, raw, slopes + r * k));
        }
        memory = batch_weights(set, m == batch_size ? sigma : short_sigma, losses.part(0, m),
                               nominal.part(0, m), nu, memory, spectral, q.part(0, m));
        scale *= shrink;
        if (std::abs(scale) < smallest_scale) {
            for (Index j = 0; j < w.size; ++j) w[j] *= scale;
            scale = 1.0;
        }
        for (Index r = 0; r < m; ++r) {
            total += q[r] * losses[r] * static_cast<double>(m);
            if (q[r] == 0.0) continue;
            for (Index c = 0; c < k; ++c) {
                weights[c] = -eta * q[r] * slopes[r * k + c];
                if (fit_intercept) b[c] += weights[c];
                weights[c] /= scale;
            }
            rows.add(static_cast<Index>(order[begin + r]), k, weights, w.data);
        }
    }
    for (Index j = 0; j < w.size; ++j) w[j] *= scale;
    return total / static_cast<double>(n);
}

// Steps with the rows `draws` between two checkpoints.
//
// w <- w - eta (n qbar_i (grad l_i(w) - grad l_i(wbar)) + gbar + mu w), where `weights` are the
// qbar, `old_slopes` the slopes at wbar, and `g`, `g_b` the gradient gbar there.
template <class Rows>
void lsvrg(const Rows& rows, const RowLoss& loss, Out w, Out b, In weights,
           Mat<const double> old_slopes, In g, In g_b, Vec<const std::int64_t> draws, double eta,
           double mu, bool fit_intercept) {
    const Index k = b.size;
    const double n = static_cast<double>(loss.size());
    Scratch room(static_cast<std::size_t>(2 * k));
    double *raw = room.data(), *slopes = raw + k;
    Lagging<Rows> steps(rows, k, w.size / k, draws.size, 1.0 - eta * mu, eta);
    for (Index t = 0; t < draws.size; ++t) {
        const Index i = static_cast<Index>(draws[t]);
        steps.catch_up(i, t, g.data, w.data);
        rows.predict(i, k, w.data, raw);
        for (Index c = 0; c < k; ++c) raw[c] += b[c];
        loss(i, k, raw, slopes);
        for (Index c = 0; c < k; ++c) {
            slopes[c] = n * weights[i] * (slopes[c] - old_slopes(i, c));
            if (fit_intercept) b[c] -= eta * (g_b[c] + slopes[c]);
        }
        steps.step(i, t, g.data, slopes, w.data);
    }
    steps.catch_up_all(draws.size, g.data, w.data);
}

// The losses of a table in increasing order, and the ratios q / p of a spectral set there.
struct SortedTable : SpectralRoom {
    std::vector<std::int64_t> rank;

    SortedTable(In table, In q, In p) : SpectralRoom(table.size), rank(order.size()) {
        sort(table);
        for (Index place = 0; place < table.size; ++place) {
            rank[order[place]] = place;
            ratio[place] = q[order[place]] / p[place];
        }
    }

    // Give row `i` another value; what lies between moves by a place.
    void move(Index i, double value) {
        const Index n = static_cast<Index>(order.size());
        Index place = rank[i];
        while (place + 1 < n && sorted[place + 1] < value) {
            sorted[place] = sorted[place + 1], order[place] = order[place + 1];
            rank[order[place]] = place;
            ++place;
        }
        while (place > 0 && sorted[place - 1] > value) {
            sorted[place] = sorted[place - 1], order[place] = order[place - 1];
            rank[order[place]] = place;
            --place;
        }
        sorted[place] = value, order[place] = i, rank[i] = place;
    }
};

// The tables of Prospect: losses, weights and products q_i s_i, and the aggregate of the latter.
struct ProspectTables {
    Out table, q;
    Mat<double> products;
    Out g, g_b;
};

// Steps with the rows `draws`; the tables and their aggregate are changed in place.
//
// w <- w - eta (n q_i grad l_i(w) - n qhat_i ghat_i + gbar + mu w), then the table gets the loss of
// row i, q becomes the exact weights of the table, the products the new q_i s_i, and `g`, `g_b`
// change by what it changed. The losses stay sorted throughout: only row i moves. Returns where
// the next search for the weights starts.
template <class Rows>
double prospect(const Rows& rows, const RowLoss& loss, const SetCodes& set, In sigma, In p, Out w,
                Out b, const ProspectTables& of, Vec<const std::int64_t> draws, double eta,
                double mu, double nu, double memory, bool fit_intercept) {
    const Index k = b.size;
    const double n = static_cast<double>(loss.size());
    Scratch room(static_cast<std::size_t>(3 * k));
    double *raw = room.data(), *slopes = raw + k, *change = slopes + k;
    Lagging<Rows> steps(rows, k, w.size / k, draws.size, 1.0 - eta * mu, eta);
    const bool is_sorted = set.family != CAPPED;
    SortedTable list(is_sorted ? of.table : Out(), of.q, p);
    for (Index t = 0; t < draws.size; ++t) {
        const Index i = static_cast<Index>(draws[t]);
        steps.catch_up(i, t, of.g.data, w.data);
        rows.predict(i, k, w.data, raw);
        for (Index c = 0; c < k; ++c) raw[c] += b[c];
        const double found = loss.less_baseline(i, loss(i, k, raw, slopes));
        double weight = is_sorted ? list.ratio[list.rank[i]] * p[i] : of.q[i];
        double* products = of.products.row(i);
        for (Index c = 0; c < k; ++c) {
            change[c] = n * (weight * slopes[c] - products[c]);
            if (fit_intercept) b[c] -= eta * (of.g_b[c] + change[c]);
        }
        steps.step(i, t, of.g.data, change, w.data);
        of.table[i] = found;
        if (is_sorted) {
            list.move(i, found);
            list.sweep(set.divergence, p, sigma, nu);
            weight = list.ratio[list.rank[i]] * p[i];
        } else {
            memory = set.divergence == CHI2
                         ? capped_chi2(of.table, p, nu, set.parameter, memory, of.q)
                         : capped_kl(of.table, p, nu, set.parameter, memory, of.q, Out());
            weight = of.q[i];
        }
        for (Index c = 0; c < k; ++c) {
            change[c] = weight * slopes[c] - products[c];
            products[c] += change[c];
            of.g_b[c] += change[c];
        }
        rows.add(i, k, change, of.g.data);
    }
    steps.catch_up_all(draws.size, of.g.data, w.data);
    if (is_sorted) list.scatter_to(p, of.q);
    return memory;
}

}  // namespace drago
