// L-BFGS in a metric for the softmax loss and a capped simplex, whole iterations at a time.
//
// The unknowns are theta = (w, c), w by rows (features x classes), and with an intercept c = b +
// mean' w, so that the two do not interfere. The general way through Python, with the same search
// along lines, is `drago.solvers.quasi_newton`.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "class_newton.hpp"
#include "classes.hpp"
#include "dual_capped.hpp"
#include "math.hpp"
#include "narrow.hpp"
#include "newton.hpp"
#include "views.hpp"

namespace drago {

// The problem and the metric: `squares` are the mean squares of the features along the directions of
// `basis`, which is empty, as its transpose, for the features themselves; so is the baseline where
// there is none.
struct ClassProblem {
    Mat<const double> X;
    Vec<const std::int64_t> y;
    In baseline, p;
    bool is_kl, intercept;
    double cap, nu, mu;
    In mean, squares;
    Mat<const double> basis, turned;
    // The weights at some losses, for another set than the capped simplex.
    std::function<void(Out losses, Out q)> weights;
    // And the rates at which they respond to these.
    std::function<void(Out losses, Out q, Out rate)> rates;
};

// A point: losses, weights, and the slopes of the rows that have one. Raw predictions are not kept:
// each trial makes them anew, a few rows at a time, as memory would take longer to send them.
struct ClassPoint {
    Out losses;
    Mat<double> slopes;
    Out q;
};

// The last pairs, in a ring; each row is a step or the change of the gradient along it.
struct ClassMemory {
    Mat<double> steps, changes;
    Index count, next;
};

// The conditions of Wolfe and the limits of a search, as in `drago.solvers.quasi_newton`.
inline constexpr double wolfe_fall = 1e-4, wolfe_flat = 0.6, search_rounding = 1e-14;
inline constexpr int search_trials = 25, search_slow = 2;
inline constexpr double search_longest = 1e10;
// About so many raw predictions are made and used at once, by the rows of a few tiles.
inline constexpr Index cached_entries = 4096;
// A weight lies on its cap up to this share; what the diagonal of a Hessian is raised by, and that
// of the intercepts, which are not determined.
inline constexpr double on_cap = 1e-12, newton_ridge = 1e-13, newton_level = 1e-10;

// What a call has led to. The state is 0 when there is more to do, 1 when an estimate is small
// enough, 2 when no step helps.
struct ClassAnswer {
    Index iterations = 0, trials = 0;
    double value = 0.0, estimate = 0.0, tangent = 0.0, tau = nan;
    int state = 0;
    bool has_step = false;
};

class ClassDescent {
  public:
    // `step` has room for a step.
    ClassDescent(const ClassProblem& of, ClassPoint here, ClassPoint other, Out step, Out theta,
                 Out slope, ClassMemory& memory, double tau)
        : of(of), d(of.X.cols), k(here.slopes.cols), n(of.X.rows), size(theta.size), here(here),
          there(other), theta(theta), slope(slope), memory(memory), tau(tau),
          room(static_cast<std::size_t>(6 * size + 3 * k + n)), coefficients(64),
          tile(static_cast<std::size_t>(at_once() * wide())), dx(step.data) {
        fresh = room.data(), turned = fresh + size, spare = turned + size;
        moved = spare + size, tried = moved + size, sums = tried + size, tried_sums = sums + k;
        shift = tried_sums + k, bends = shift + k, factors = bends + n;
    }

    // Where theta is, with the gradient there.
    double start() {
        ridge = {dot(theta.data, theta.data, d * k), 0.0, 0.0};
        const Along at = visit(0.0);
        std::swap(here, there);
        gradient();
        return at.value;
    }

    // Up to `most` iterations; fewer where an estimate of the gap has fallen to its share of what
    // the objective has fallen below the reference.
    ClassAnswer run(double value, Index most, double reference, double share,
                    double share_of_tangent, bool newton_steps, bool has_step) {
        ClassAnswer answer;
        answer.value = value, answer.has_step = has_step;
        by_newton = newton_steps;
        take_apart();
        follow(mean_curvature(of.y, here.q, here.slopes));
        if (!answer.has_step) direction();
        answer.has_step = true;
        measure(answer);
        estimate(answer);
        while (answer.state == 0 && answer.iterations < most) {
            const double falling = dot(slope.data, dx);
            Along found{};
            const bool has = falling < 0.0 && search(answer.value, falling, found);
            if (!has) {
                if (memory.count == 0 && !by_newton) answer.state = 2;
                if (!by_newton) memory.count = 0;  // old pairs can jam it far from the optimum
                by_newton = false;
                direction();
                continue;
            }
            if (found.t != last) visit(found.t);
            std::swap(here, there);
            std::copy(slope.data, slope.data + size, fresh);
            for (Index j = 0; j < size; ++j) theta[j] += found.t * dx[j];
            gradient();
            follow(weighted(bends, least_curvature) / static_cast<double>(k - 1));
            remember(found.t);
            answer.value = found.value;
            ++answer.iterations;
            measure(answer);
            const double fallen = std::max(reference - answer.value, 0.0);
            if (answer.tangent < share_of_tangent * fallen) {
                answer.state = 1, answer.has_step = false;
                std::fill(dx, dx + size, 0.0);
                estimate(answer);
                break;
            }
            direction();
            estimate(answer);
            if (answer.estimate < share * fallen) answer.state = 1;
        }
        answer.tau = tau;
        answer.trials = trials;
        return answer;
    }

    const ClassPoint& point() const { return here; }

  private:
    struct Along {
        double t, value, slope;
    };

    const ClassProblem& of;
    const Index d, k, n, size;
    ClassPoint here, there;
    Out theta, slope;
    ClassMemory& memory;
    double tau;
    Scratch room, coefficients, tile;
    double *dx, *fresh, *turned, *spare, *moved, *tried, *sums, *tried_sums, *shift, *bends;
    double* factors;
    double last = -1.0, drift = infinity, plain_square = 0.0;
    std::array<double, 3> ridge{};
    Index trials = 0;
    bool by_newton = false;

    double dot(const double* a, const double* b) const { return dot(a, b, size); }

    [[gnu::noinline]] static double dot(const double* a, const double* b, Index size) {
        const auto term = [&](Index j) DRAGO_INLINED { return std::array{a[j] * b[j]}; };
        return drago::sums<1>(size, term)[0];
    }

    // The product X w + b with some theta.
    NarrowProduct product(const double* at) {
        std::fill(shift, shift + k, 0.0);
        if (of.intercept) {
            for (Index c = 0; c < k; ++c) shift[c] = at[d * k + c];
            for (Index j = 0; j < d; ++j)
                for (Index c = 0; c < k; ++c) shift[c] -= of.mean[j] * at[j * k + c];
        }
        return {{at, d, k}, {shift, k}, no_class};
    }

    // The metric B goes along with the curvature of the losses here, in the raw predictions.
    void follow(double curvature) {
        for (Index j = 0; j < d; ++j)
            std::fill_n(factors + j * k, k, 1.0 / (curvature * of.squares[j] + of.mu));
        std::fill(factors + d * k, factors + size, 1.0 / curvature);
    }

    // to = B^-1 from.
    void unbend(const double* from, double* to) {
        const double* __restrict factor = factors;
        if (of.basis.empty()) {
            for (Index j = 0; j < size; ++j) to[j] = factor[j] * from[j];
            return;
        }
        std::fill(shift, shift + k, 0.0);
        narrow_predict(of.turned, {from, d, k}, {shift, k}, {spare, d, k});
        for (Index j = 0; j < d * k; ++j) spare[j] *= factor[j];
        narrow_predict(of.basis, {spare, d, k}, {shift, k}, {to, d, k});
        for (Index j = d * k; j < size; ++j) to[j] = factor[j] * from[j];
    }

    // The gradient at `here`, which a visit has found.
    void gradient() {
        std::copy(tried, tried + size, slope.data);
        take_apart();
    }

    // The gradient at a point with the unknowns `at`, and the slopes' sums.
    void gradient_at(const ClassPoint& point, const double* at, double* out, double* total) {
        narrow_gradient(of.X, point.q, point.slopes, {out, d, k}, {total, k});
        for (Index j = 0; j < d; ++j) {
            const double mean = of.intercept ? of.mean[j] : 0.0;
            for (Index c = 0; c < k; ++c) out[j * k + c] += of.mu * at[j * k + c] - mean * total[c];
        }
        if (of.intercept) std::copy(total, total + k, out + d * k);
    }

    // The slopes' sums, and the square of the gradient in w, from the gradient.
    void take_apart() {
        if (of.intercept) std::copy(slope.data + d * k, slope.data + size, sums);
        const double* plain = slope.data;
        if (of.intercept) {
            for (Index j = 0; j < d; ++j)
                for (Index c = 0; c < k; ++c)
                    spare[j * k + c] = slope[j * k + c] + of.mean[j] * sums[c];
            plain = spare;
        }
        plain_square = dot(plain, plain, d * k);
    }

    // What the next step promises, by the Hessian that it comes from, and by the metric.
    [[gnu::noinline]] void estimate(ClassAnswer& answer) {
        unbend(slope.data, turned);
        answer.estimate = 0.5 * std::max(dot(slope.data, turned), -dot(slope.data, dx));
    }

    // The tangents' bound.
    [[gnu::noinline]] void measure(ClassAnswer& answer) {
        answer.tangent = of.mu > 0.0 ? 0.5 * plain_square / of.mu : infinity;
        if (!of.intercept) return;
        // About what it costs to make the slopes' sum 0, class by class, as the bound asks for.
        std::fill(shift, shift + k, 0.0);
        for (Index i = 0; i < n; ++i) shift[of.y[i]] += here.q[i];
        double share = 0.0, spread = 0.0;
        for (Index c = 0; c < k; ++c)
            if (sums[c] > 0.0) share = std::max(share, sums[c] / (sums[c] + shift[c]));
        for (Index j = 0; j < d; ++j)
            spread += of.squares[j] + of.mean[j] * of.mean[j];
        answer.tangent += share * share * (1.0 + 0.125 * spread / of.mu);
    }

    void direction() {
        if (!by_newton || !newton()) quasi_newton();
    }

    // dx = -H^-1 slope, by Cholesky's factors; false where there are none.
    bool newton() {
        Scratch held(static_cast<std::size_t>(2 * size * size + size + n));
        const Mat<double> H{held.data(), size, size}, L{held.data() + size * size, size, size};
        const Out extra{L.row(size), size}, rate{L.row(size) + size, n};
        if (of.rates) {
            of.rates(here.losses, here.q, rate);
        } else {
            for (Index i = 0; i < n; ++i) {
                const double q = here.q[i];
                const bool is_free = q > 0.0 && q < (1.0 - on_cap) * of.cap * of.p[i];
                rate[i] = is_free ? (of.is_kl ? q : of.p[i]) / of.nu : 0.0;
            }
        }
        ClassHessian hessian(of.X, of.y, of.mean, of.intercept, of.mu, k);
        hessian.set(here.q, here.slopes, rate);
        hessian.fill(H);
        // Adding the same to all intercepts changes no loss: what rounding makes of it is dropped.
        for (Index j = 0; j < size; ++j) extra[j] = newton_ridge * H(j, j);
        for (Index j = d * k; j < size; ++j) extra[j] = newton_level * H(j, j) + tiny;
        if (!newton_solve(H, extra, slope, L, {dx, size})) return false;
        double level = 0.0;
        for (Index j = d * k; j < size; ++j) level += dx[j] / static_cast<double>(k);
        for (Index j = d * k; j < size; ++j) dx[j] -= level;
        return true;
    }

    // dx = -H slope, by the two loops over the pairs; H_0 is the inverse of the metric, scaled.
    void quasi_newton() {
        const Index m = memory.steps.rows;
        const auto row = [&](Index age) { return (memory.next - 1 - age + 2 * m) % m; };
        if (static_cast<Index>(coefficients.size()) < 2 * m) coefficients.resize(2 * m);
        std::copy(slope.data, slope.data + size, turned);
        for (Index age = 0; age < memory.count; ++age) {
            const double *s = memory.steps.row(row(age)), *y = memory.changes.row(row(age));
            const auto term = [&](Index j) DRAGO_INLINED {
                return std::array{s[j] * y[j], s[j] * turned[j]};
            };
            const auto [curved, along] = drago::sums<2>(size, term);
            const double rho = 1.0 / curved, a = rho * along;
            coefficients[age] = a, coefficients[m + age] = rho;
            for (Index j = 0; j < size; ++j) turned[j] -= a * y[j];
        }
        unbend(turned, dx);
        if (memory.count > 0) {
            const double* y = memory.changes.row(row(0));
            unbend(y, turned);
            const double scale = 1.0 / (coefficients[m] * dot(y, turned));
            for (Index j = 0; j < size; ++j) dx[j] *= scale;
        }
        for (Index age = memory.count - 1; age >= 0; --age) {
            const double *s = memory.steps.row(row(age)), *y = memory.changes.row(row(age));
            const double b = coefficients[m + age] * dot(y, dx);
            for (Index j = 0; j < size; ++j) dx[j] += (coefficients[age] - b) * s[j];
        }
        for (Index j = 0; j < size; ++j) dx[j] = -dx[j];
    }

    // Keep the pair of a step t dx and the change since the gradient `fresh`, if it has curvature.
    void remember(double t) {
        double *s = memory.steps.row(memory.next), *y = memory.changes.row(memory.next);
        for (Index j = 0; j < size; ++j) s[j] = t * dx[j], y[j] = slope[j] - fresh[j];
        if (!(dot(s, y) > 1e-16 * std::sqrt(dot(s, s) * dot(y, y)))) return;
        memory.next = (memory.next + 1) % memory.steps.rows;
        memory.count = std::min(memory.count + 1, memory.steps.rows);
    }

    // The sum of an entry for each row by the weights here, and something at least.
    double weighted(const double* entries, double least) const {
        double total = 0.0;
        for (Index i = 0; i < n; ++i) total += here.q[i] > 0.0 ? here.q[i] * entries[i] : 0.0;
        return std::max(total, least);
    }

    // Rows whose raw predictions stay in the cache.
    Index at_once() const {
        return std::max(cached_entries / (NarrowTile::rows * k), Index{1}) * NarrowTile::rows;
    }

    // Columns of theirs.
    Index wide() const { return class_width(k); }

    // work(raw, first, end) for the raw predictions of some theta, a few rows at a time.
    template <class Work>
    void predicted(const double* at, Work work) {
        const NarrowProduct along_it = product(at);
        for (Index first = 0; first < n; first += at_once()) {
            const Index end = std::min(first + at_once(), n);
            along_it.rows(of.X.part(first, end), tile.data(), wide());
            work(tile.data(), first, end);
        }
    }

    // The objective and its slope at length t, all of the point `there`, and the gradient.
    Along visit(double t) {
        std::copy(theta.data, theta.data + size, moved);
        for (Index j = 0; t > 0.0 && j < size; ++j) moved[j] += t * dx[j];
        const double before = tau, least = least_of_weight();
        predicted(moved, [&](const double* raw, Index first, Index end) {
            fill(raw, first, end, least);
        });
        Along found = finish(t);
        if (last == t) {
            drift = std::fabs(tau - before);
            if (least > -infinity && !(tau >= least)) fill_below(least);
            gradient_at(there, moved, tried, tried_sums);
            found.slope = dot(tried, dx);
        } else {
            std::fill(tried, tried + size, infinity);  // it is not known
        }
        return found;
    }

    void fill(const double* raw, Index first, Index end, double least) {
        const Index count = end - first;
        softmax_rows({of.y.data + first, count}, raw, wide(), k,
                     {there.losses.data + first, count}, there.slopes.row(first), bends + first,
                     least);
    }

    // Losses with a weight are hardly less than this, by how the threshold has moved of late.
    double least_of_weight() const {
        const bool has_threshold = !of.weights && !of.is_kl && of.baseline.empty();
        return has_threshold && k > few_classes && tau == tau ? tau - 2.0 * drift : -infinity;
    }

    // The slopes of the rows of weight whose loss was thought to be too small for one.
    void fill_below(double least) {
        const NarrowProduct along_it = product(moved);
        for (Index i = 0; i < n; ++i) {
            if (there.q[i] == 0.0 || !(there.losses[i] < least)) continue;
            along_it.rows(of.X.part(i, i + 1), tile.data(), wide());
            fill(tile.data(), i, i + 1, -infinity);
        }
    }

    // The curvature of the weighted losses here along the raw predictions of a step.
    double bend_along() {
        double total = 0.0;
        predicted(dx, [&](const double* raw, Index first, Index end) {
            for (Index i = first; i < end; ++i, raw += wide()) {
                if (here.q[i] == 0.0) continue;
                const double *s = here.slopes.row(i), own = raw[of.y[i]];
                double mean = own, square = own * own;
                for (Index c = 0; c < k; ++c)
                    mean += s[c] * raw[c], square += s[c] * raw[c] * raw[c];
                total += here.q[i] * (square - mean * mean);
            }
        });
        return std::max(total, 0.0);
    }

    // The objective at the losses `there`, and the weights; the slope is not known yet.
    Along finish(double t) {
        ++trials;
        last = t;
        double total = 0.0;
        for (Index i = 0; i < n; ++i) {
            if (!of.baseline.empty()) there.losses[i] -= of.baseline[i];
            total += there.losses[i];
        }
        if (!std::isfinite(total)) {
            last = -1.0;
            return {t, infinity, infinity};
        }
        if (of.weights)
            of.weights(there.losses, there.q);
        else
            tau = of.is_kl ? capped_kl(there.losses, of.p, of.nu, of.cap, tau, there.q, {})
                           : capped_chi2(there.losses, of.p, of.nu, of.cap, tau, there.q);
        double loss = 0.0, away = 0.0;
        for (Index i = 0; i < n; ++i) {
            const double q = there.q[i];
            if (q == 0.0) continue;
            loss += q * there.losses[i];
            away += of.is_kl ? q * std::log(q / of.p[i]) : 0.5 * q * q / of.p[i];
        }
        if (!of.is_kl) away -= 0.5;
        const double square = ridge[0] + t * (2.0 * ridge[1] + t * ridge[2]);
        return {t, loss - of.nu * away + 0.5 * of.mu * square, nan};
    }

    // A length that meets the conditions of Wolfe; whether one was found.
    bool search(double value, double falling, Along& best) {
        const Index m = d * k;
        ridge = {dot(theta.data, theta.data, m), dot(theta.data, dx, m), dot(dx, dx, m)};
        const Along origin{0.0, value, falling};
        const double level = value + search_rounding * std::abs(value);
        Along low = origin, high{};
        bool has_high = false, has_best = false;
        std::vector<double> widths;
        double t = 1.0;
        // The first step, before pairs tell a scale: features that are not independent bend it more
        // than their mean squares say, and one that is too long leads far astray.
        const bool is_measured = memory.count == 0 && !by_newton && of.basis.empty();
        if (is_measured) t = std::min(1.0, -falling / (bend_along() + of.mu * ridge[2]));
        for (int trial = 0; trial < search_trials; ++trial) {
            const Along at = visit(t);
            const bool fallen = at.value <= value + wolfe_fall * t * falling;
            if (fallen || (at.value <= level && at.slope <= -0.8 * falling)) {
                if (std::abs(at.slope) <= -wolfe_flat * falling) {
                    best = at;
                    return true;
                }
                if (at.value < (has_best ? best : origin).value) best = at, has_best = true;
            }
            if (at.slope < 0.0 && at.value <= level) {
                low = at;
            } else {
                high = at, has_high = true;
            }
            if (has_high) {
                widths.push_back(high.t - low.t);
                t = between(low, high, widths);
            } else {
                t = 4.0 * low.t;
            }
            if (!(t < search_longest) || t <= low.t) break;
        }
        return has_best;
    }

    static double between(const Along& low, const Along& high, const std::vector<double>& widths) {
        const double width = high.t - low.t;
        const std::size_t count = widths.size();
        double share = 0.1;
        if (std::isfinite(high.value) && high.slope > 0.0) {
            const double rise = high.value - low.value;
            share = count % 2 ? low.slope / (low.slope - high.slope)
                              : (high.slope * width - rise) / ((high.slope - low.slope) * width);
        }
        if (count > search_slow && widths.back() > 0.2 * widths[count - 1 - search_slow])
            share = 0.5;
        return low.t + width * std::min(std::max(share, 0.02), 0.98);
    }
};

}  // namespace drago
