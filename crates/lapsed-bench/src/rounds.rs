//! Rounds in which the sides alternate (A, B, A, B, …), so that other load of the machine affects
//! all alike.

use anyhow::Result;

/// One way of doing it: a round's figure (a rate, or a time).
pub type Side<'a> = Box<dyn FnMut() -> Result<f64> + 'a>;

/// The figures of all sides, by round.
#[derive(Debug)]
pub struct Figures {
    rounds: Vec<Vec<f64>>,
}

/// Lets the sides take turns. One round more is run first and not counted: caches, learned batch
/// sizes and files that grow belong to nobody's figure.
pub fn take_turns(rounds: usize, sides: &mut [Side<'_>]) -> Result<Figures> {
    let mut figures = Vec::with_capacity(rounds + 1);
    for _ in 0..=rounds {
        figures.push(sides.iter_mut().map(|side| side()).collect::<Result<Vec<f64>>>()?);
    }
    figures.remove(0);
    Ok(Figures { rounds: figures })
}

impl Figures {
    /// The median of one side.
    pub fn of(&self, side: usize) -> f64 {
        median(self.rounds.iter().map(|round| round[side]).collect())
    }

    /// The median of the ratios of two sides, each taken within one round.
    pub fn ratio(&self, side: usize, to: usize) -> f64 {
        median(self.rounds.iter().map(|round| round[side] / round[to]).collect())
    }
}

/// The middle one, or the mean of the two in the middle.
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    match (figures.len(), figures.len() / 2) {
        (0, _) => f64::NAN,
        (n, middle) if n % 2 == 1 => figures[middle],
        (_, middle) => (figures[middle - 1] + figures[middle]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_within_a_round() {
        // The machine is half as fast in every other round: it does not show.
        let (mut a, mut b) = (0.0, 0.0);
        let slower = |turn: &mut f64, base: f64| {
            *turn += 1.0;
            Ok(base / (1.0 + *turn % 2.0))
        };
        let mut sides: Vec<Side<'_>> =
            vec![Box::new(|| slower(&mut a, 30.0)), Box::new(|| slower(&mut b, 10.0))];
        let figures = take_turns(4, &mut sides).unwrap();
        assert_eq!(figures.ratio(0, 1), 3.0);
        assert_eq!(figures.of(1), 7.5);
    }

    #[test]
    fn a_median_is_the_middle_value_or_the_mean_of_the_two_middle_values() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
